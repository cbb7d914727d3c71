// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger_profile.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/prices/price.h"
#include "profiles/stack_file.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {

void apply_circumstances(const LedgerRow& row, const std::vector<std::string>& overrides,
                         Profile& profile) {
  const auto is_set = [&](std::string_view path) { return is_overridden(overrides, path); };
  LowPrecisionParams& low = profile.cost.low_precision.values;
  const double kept = software_age().kept(row);
  if (!is_set("cost.low_precision.fp8_share")) low.fp8_share *= kept;
  if (!is_set("cost.low_precision.nvfp4_share")) low.nvfp4_share *= kept;
  if (!row.power_limit_w) return;
  for (const std::string& lower :
       power_limit_overrides(profile, load_energy(), *row.power_limit_w)) {
    if (!is_set(std::string_view(lower).substr(0, lower.find('=')))) override_value(profile, lower);
  }
}

Profile profile_of(const LedgerRow& row, const StepParameters& parameters,
                   const std::vector<std::string>& overrides) {
  const ClusterFile cluster = cluster_of(row);
  Profile profile = make_profile(cluster, stack_of(row), overrides);
  apply_circumstances(row, overrides, profile);
  apply_source_constants(parameters, cluster.described_by, row.source, overrides, profile);
  return profile;
}

Profile profile_of(const LedgerRow& row, const std::vector<std::string>& overrides) {
  return profile_of(row, load_step_parameters(shipped_step_parameters()), overrides);
}

namespace {

bool mentions(const JsonReader& entry, std::string_view list, std::string_view name) {
  const auto names = entry.require_array(list);
  return std::any_of(names.begin(), names.end(),
                     [&](const JsonReader& one) { return one.value<std::string>() == name; });
}

}  // namespace

UsualPlan usual_plan(const std::string& stack, std::string_view architecture,
                     std::string_view gpu) {
  static const JsonFile file = JsonFile::load(data_dir() / "published" / "usual_plans.json");
  UsualPlan plan;
  for (const JsonReader& entry : file.root().require_array("plans")) {
    if (!mentions(entry, "stacks", stack)) continue;
    if (entry.has("architectures") && !mentions(entry, "architectures", architecture)) continue;
    if (entry.has("gpus") && !mentions(entry, "gpus", gpu)) continue;
    if (entry.has("reduce_dtype")) {
      plan.reduce_dtype = from_word<DType>(entry.require<std::string>("reduce_dtype"));
      if (!plan.reduce_dtype) entry.fail("reduce_dtype", "fp32 or bf16");
    }
    plan.fp8_params = entry.optional<bool>("fp8_params", plan.fp8_params);
    plan.recompute = entry.optional<std::string>("recompute", plan.recompute);
    if (entry.has("dispatcher")) {
      plan.dispatcher = from_word<Dispatcher>(entry.require<std::string>("dispatcher"));
      if (!plan.dispatcher)
        entry.fail("dispatcher", fmt::format("{}", fmt::join(words_of<Dispatcher>(), ", ")));
    }
  }
  return plan;
}

std::string usual_stack(const Cluster& cluster) {
  return cluster.gpu.is_processor() ? "native" : "torch-compile";
}

std::string usual_model_parallel_stack() {
  return "megatron-core";
}

std::string usual_fine_tuning_stack() {
  return "hf-trainer";
}

namespace {

constexpr int kMonths = 12;

std::optional<int> month_of(std::string_view release) {
  const std::vector<int> date = release_date(release);
  if (date.size() < 2) return std::nullopt;
  return date[0] * kMonths + date[1];
}

int month_at(const JsonReader& from, std::string_view key) {
  const auto text = from.require<std::string>(key);
  if (const auto month = month_of(text)) return *month;
  from.fail(key, "a month, as 2026-06");
}

}  // namespace

double SoftwareAge::kept(const LedgerRow& row) const {
  if (!gpus.contains(row.gpu)) return 1;
  std::optional<int> month = month_of(row.software);
  if (const auto of_stack = releases.find(row.plan.stack); !month && of_stack != releases.end()) {
    for (const auto& [begin, released] : of_stack->second)
      if (row.software.starts_with(begin)) month = released;
  }
  if (!month) return 1;
  return 1 - lost_a_month * (newest - std::clamp(*month, oldest, newest));
}

SoftwareAge load_software_age(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {"shardwright.software_age/1.0"});
  SoftwareAge age;
  for (const std::string& gpu : root.require_list<std::string>("gpus")) age.gpus.insert(gpu);
  age.lost_a_month = root.require<double>("lost_a_month", between(0.0, 0.02));
  age.oldest = month_at(root, "oldest");
  age.newest = month_at(root, "newest");
  if (age.oldest > age.newest) root.fail("oldest", "a month that is not after newest");
  const JsonReader stacks = root.require_object("releases");
  for (const std::string& stack : stacks.keys()) {
    const JsonReader releases = stacks.require_object(stack);
    for (const std::string& begin : releases.keys())
      age.releases[stack][begin] = month_at(releases, begin);
  }
  return age;
}

const SoftwareAge& software_age() {
  static const SoftwareAge age = [] {
    const std::filesystem::path file = data_dir() / "fitted" / "software_age.json";
    return std::filesystem::exists(file) ? load_software_age(file) : SoftwareAge{};
  }();
  return age;
}

}  // namespace shardwright::profiles
