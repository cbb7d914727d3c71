// SPDX-License-Identifier: Apache-2.0
// Would anybody notice? Each major constant is changed by 10 % in memory, up and down, and the
// criteria of published_table.h must refuse what is then predicted.
//
// Constants are changed where they are stored: those of a kernel for one GPU, those of the network
// for one cluster, those of the software for one stack. Which are major is not a list but a rule:
// every number of a profile whose change moves the predicted time of the runs that see it by more
// than kMajor on average. The default suite asks of the constants below, which are the ones that
// fits write and the rates of the kernels; scripts/mutation_check asks of all numbers of all
// profiles and prints what became of each.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "profiles/fields.h"
#include "profiles/stack_file.h"
#include "tests/guard/published_table.h"

namespace shardwright::guard {
namespace {

using profiles::LedgerRow;
using profiles::Profile;

constexpr double kMajor = 0.01;

/// One stored number: of a GPU, a cluster or a stack.
struct Constant {
  std::string path;
  std::string of;
  friend auto operator<=>(const Constant&, const Constant&) = default;
};

/// What the value at `path` belongs to in this row: two runs that share it share the constant.
std::string owner_of(const std::string& path, const LedgerRow& row, const Profile& profile) {
  if (path.starts_with("stack.")) return row.plan.stack;
  if (path.starts_with("cluster.")) {
    return fmt::format("{} x {} {} Gb/s", row.gpus_per_node, row.gpu,
                       std::lround(profile.cluster.nic_bytes_per_s * 8e-9));
  }
  return row.gpu;
}

double* number(Profile& profile, const std::string& path) {
  const profiles::FieldList fields = profiles::fields_of(profile);
  const profiles::Field* field = fields.find(path);
  if (field == nullptr) return nullptr;
  auto* const* value = std::get_if<double*>(&field->target);
  return value == nullptr ? nullptr : *value;
}

Mutation scaled(const Constant& constant, double factor) {
  return [constant, factor](const LedgerRow& row, Profile& profile) {
    if (owner_of(constant.path, row, profile) != constant.of) return false;
    *number(profile, constant.path) *= factor;
    return true;
  };
}

/// Mean of |log(changed / before)| over the runs whose prediction changed at all; 0 for none.
double mean_move(const PublishedTable& before, const PublishedTable& changed) {
  double sum = 0, n = 0;
  for (std::size_t i = 0; i < before.predicted_s.size(); ++i) {
    if (changed.predicted_s[i] <= 0 || changed.predicted_s[i] == before.predicted_s[i]) continue;
    sum += std::abs(std::log(changed.predicted_s[i] / before.predicted_s[i]));
    ++n;
  }
  return n > 0 ? sum / n : 0;
}

/// The numbers that the timed runs of the ledger see and `asked` accepts.
std::vector<Constant> constants_of(const Ledger& ledger,
                                   const std::function<bool(const std::string&)>& asked) {
  std::set<Constant> constants;
  for (std::size_t i = 0; i < ledger.rows().size(); ++i) {
    if (!ledger.rows()[i].iteration_s) continue;
    Profile profile = ledger.profile(i);
    for (const profiles::Field& field : profiles::fields_of(profile).fields()) {
      auto* const* value = std::get_if<double*>(&field.target);
      if (value == nullptr || **value == 0 || !asked(field.path)) continue;
      constants.insert({field.path, owner_of(field.path, ledger.rows()[i], profile)});
    }
  }
  return {constants.begin(), constants.end()};
}

struct Tally {
  int major = 0, caught = 0, by_promise = 0, minor = 0;
};

/// Changes each constant by 10 % both ways. `report` says what became of it.
Tally mutate(const Ledger& ledger, const std::vector<Constant>& constants, bool report) {
  Tally tally;
  for (const Constant& constant : constants) {
    for (const double factor : {0.9, 1.1}) {
      const PublishedTable changed = ledger.mutated(scaled(constant, factor));
      const double move = mean_move(ledger.table(), changed);
      const bool promise = !broken_promises(changed).empty();
      const bool caught = promise || !departures_from_record(changed).empty();
      const bool major = move > kMajor;
      tally.major += major;
      tally.minor += !major;
      tally.caught += major && caught;
      tally.by_promise += major && promise;
      if (major) {
        EXPECT_TRUE(caught) << constant.path << " of " << constant.of << " times " << factor
                            << " moves predictions by " << 100 * move << " % and nobody notices";
      }
      if (report) {
        fmt::print("{:<44} {:<28} x {:.1f}  {:6.2f} %  {}\n", constant.path, constant.of, factor,
                   100 * move,
                   promise  ? "breaks a promise"
                   : caught ? "departs from the record"
                            : "not noticed");
      }
    }
  }
  return tally;
}

TEST(Mutation, TenPercentOfAMajorConstantAreNoticed) {
  const std::set<std::string> asked = {"cost.gemm.sustained_factor",
                                       "cost.attention.fa2.forward_flops",
                                       "cost.attention.fa2.backward_flops",
                                       "cost.attention.triton.forward_flops",
                                       "cost.attention.triton.backward_flops",
                                       "cluster.nic_efficiency",
                                       "gpu.hbm_bytes_per_s"};
  const Ledger ledger;
  const std::vector<Constant> constants =
      constants_of(ledger, [&](const std::string& path) { return asked.contains(path); });
  std::set<std::string> found;
  for (const Constant& constant : constants) found.insert(constant.path);
  ASSERT_EQ(found, asked) << "a constant was renamed";
  const Tally tally = mutate(ledger, constants, false);
  EXPECT_GE(tally.major, 20);
  EXPECT_EQ(tally.caught, tally.major);
}

TEST(Mutation, NothingChangedIsNothingNoticed) {
  const PublishedTable same = Ledger().mutated([](const LedgerRow&, Profile&) { return true; });
  EXPECT_THAT(broken_promises(same), ::testing::IsEmpty());
  EXPECT_THAT(departures_from_record(same), ::testing::IsEmpty());
}

// By scripts/mutation_check: every number of every profile that a published run sees.
TEST(Mutation, DISABLED_OfEveryNumber) {
  const Ledger ledger;
  const Tally tally =
      mutate(ledger, constants_of(ledger, [](const std::string&) { return true; }), true);
  fmt::print(
      "{} changes move predictions by more than {:.0f} %: {} noticed, {} of them by a broken "
      "promise; {} move them by less\n",
      tally.major, 100 * kMajor, tally.caught, tally.by_promise, tally.minor);
}

}  // namespace
}  // namespace shardwright::guard
