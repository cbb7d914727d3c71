// SPDX-License-Identifier: Apache-2.0
#include "cli/profiles/profile_diff.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>
#include <variant>

#include "cli/profiles/profile_validation.h"
#include "cli/render/text/quantity.h"
#include "profiles/fields.h"
#include "sim/core/base/error.h"
#include "sim/cost/collectives.h"
#include "sim/cost/op_cost.h"

namespace shardwright::cli {
namespace {

using profiles::Field;
using profiles::Profile;

struct FieldValue {
  std::string text;
  double number = NAN;
};

FieldValue value_of(const Field& field) {
  return std::visit(
      [&](const auto* target) -> FieldValue {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          const auto number = static_cast<double>(*target);
          return {quantity(number, field.unit), number};
        } else {
          return {profiles::set_text(field), NAN};
        }
      },
      field.target);
}

/// Names and texts of the files themselves are no values of the machine.
bool compared(const Field& field) {
  return !field.path.ends_with(".id") && !field.path.ends_with("_note");
}

double product_s(const sim::KernelCosts& costs, std::int64_t m, std::int64_t n, std::int64_t k) {
  Work work;
  work.kind = WorkKind::kGemm;
  work.m = m;
  work.n = n;
  work.k = k;
  return sim::kernel_time_s(costs, work, {});
}

double attention_s(const sim::KernelCosts& costs, bool backward) {
  Work work;
  work.kind = WorkKind::kAttention;
  work.m = 32;
  work.n = 4096;
  work.k = 128;
  work.backward = backward;
  return sim::kernel_time_s(costs, work, {});
}

double memory_s(const sim::KernelCosts& costs, double bytes, int kernels, double efficiency) {
  Work work;
  work.kind = WorkKind::kMemory;
  work.bytes = static_cast<std::int64_t>(bytes);
  work.kernels = static_cast<std::uint16_t>(kernels);
  work.efficiency = efficiency;
  return sim::kernel_time_s(costs, work, {});
}

double collective_s(const Profile& profile, Collective collective, std::int64_t nodes,
                    double bytes) {
  CollectiveGroup group;
  group.ranks_per_node = profile.cluster.gpus_per_node;
  group.ranks = nodes * group.ranks_per_node;
  return sim::collective_cost(profile.cost.collectives.values, sim::network_of(profile.cluster),
                              group, collective, bytes)
      .time_s;
}

/// Operations that a step is made of, by what they are called and what they take.
std::vector<std::pair<std::string, double>> operations_of(const Profile& profile) {
  const sim::KernelCosts costs = sim::kernel_costs(profile);
  const Stack& stack = profile.stack;
  const double elements = 4096.0 * 4096.0;
  std::vector<std::pair<std::string, double>> list = {
      {"a product of 4096 x 4096 x 4096", product_s(costs, 4096, 4096, 4096)},
      {"a product of 8192 x 28672 x 8192", product_s(costs, 8192, 28672, 8192)},
      {"attention forward of 4096 tokens, 32 heads of 128", attention_s(costs, false)},
      {"attention backward of the same", attention_s(costs, true)},
      {"a norm forward of 4096 x 4096",
       memory_s(costs, elements * stack.norm.forward_bytes, stack.norm.forward_kernels,
                stack.norm.forward_efficiency)},
      {"a norm backward of the same",
       memory_s(costs, elements * stack.norm.backward_bytes, stack.norm.backward_kernels,
                stack.norm.backward_efficiency)},
      {"the optimizer on 100 million parameters",
       memory_s(costs, 1e8 * stack.optimizer.bytes_per_parameter, 1, stack.optimizer.efficiency)},
      {"launching 1000 kernels forward", 1000 * stack.host.forward_launch_s},
      {"launching 1000 kernels backward", 1000 * stack.host.backward_launch_s},
      {"what the host adds to a step", stack.host.step_s}};
  if (profile.cluster.gpus_per_node > 1) {
    list.emplace_back("all_gather of 256 MiB in a node",
                      collective_s(profile, Collective::kAllGather, 1, 256 * kMiB));
    list.emplace_back("reduce_scatter of 512 MiB in a node",
                      collective_s(profile, Collective::kReduceScatter, 1, 512 * kMiB));
  }
  if (profile.cluster.nics_per_node > 0) {
    list.emplace_back("all_gather of 256 MiB on 8 nodes",
                      collective_s(profile, Collective::kAllGather, 8, 256 * kMiB));
    list.emplace_back("reduce_scatter of 512 MiB on 8 nodes",
                      collective_s(profile, Collective::kReduceScatter, 8, 512 * kMiB));
  }
  return list;
}

double change_size(const ValueChange& change) {
  return change.ratio > 0 ? std::abs(std::log(change.ratio)) : -1;
}

}  // namespace

ProfileDiff diff_profiles(const std::string& a, const std::string& b, const std::string& stack,
                          const std::string& on) {
  const ProfileKind kind = profile_kind(a), other = profile_kind(b);
  if (kind != other || kind == ProfileKind::kGpu) {
    throw Error(fmt::format("{} is a {} and {} is a {}, expected two clusters or two stacks.", a,
                            name_of(kind), b, name_of(other)));
  }
  const bool stacks = kind == ProfileKind::kStack;
  Profile first = profiles::load_profile(stacks ? on : a, stacks ? a : stack);
  Profile second = profiles::load_profile(stacks ? on : b, stacks ? b : stack);
  ProfileDiff diff{a, b, 0, {}, {}};
  const profiles::FieldList first_fields = profiles::fields_of(first);
  std::map<std::string, FieldValue, std::less<>> values;
  for (const Field& field : first_fields.fields()) {
    if (compared(field)) values.emplace(field.path, value_of(field));
  }
  const profiles::FieldList second_fields = profiles::fields_of(second);
  for (const Field& field : second_fields.fields()) {
    if (!compared(field)) continue;
    const FieldValue now = value_of(field);
    const auto at = values.find(field.path);
    const FieldValue before = at == values.end() ? FieldValue{"none"} : at->second;
    ++diff.values;
    const bool numbers = !std::isnan(now.number) && !std::isnan(before.number);
    if (numbers ? now.number == before.number : now.text == before.text) continue;
    ValueChange change{field.path, std::string(field.meaning), before.text, now.text, 0, ""};
    if (numbers && now.number > 0 && before.number > 0) change.ratio = now.number / before.number;
    const auto origin = second.origins.find(field.path);
    if (origin != second.origins.end()) change.source = origin->second.source;
    diff.changes.push_back(std::move(change));
  }
  std::stable_sort(
      diff.changes.begin(), diff.changes.end(),
      [](const ValueChange& x, const ValueChange& y) { return change_size(x) > change_size(y); });
  const auto before = operations_of(first);
  std::map<std::string, double> after;
  for (const auto& [what, time] : operations_of(second)) after.emplace(what, time);
  for (const auto& [what, time] : before) {
    const auto at = after.find(what);
    if (at != after.end()) diff.operations.push_back({what, time, at->second});
  }
  return diff;
}

}  // namespace shardwright::cli
