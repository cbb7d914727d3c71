// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/novelty_widths.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/portable_math.h"

namespace shardwright::profiles {
namespace {

constexpr std::int64_t kOften = 3;  // cells, as OFTEN of python3 -m profiles.research novelty
constexpr double kWidestHalfWidth = 10;

/// What launches cost is predicted, too, so that quicker layers are not unknown without end: ln(2).
constexpr double kMostOfHost = 0.69314718055994531;

/// Published pairs of real and forced routing of one plan differ by 20 to 50 % in time; half of the
/// larger, of the logarithm. No ledger has enough such pairs to fit it.
constexpr double kRealRouting = 0.20273255405408219;  // ln(1.5) / 2

double half_width(const JsonReader& from, std::string_view key) {
  return from.require<double>(key, between(0.0, kWidestHalfWidth));
}

NoveltyWidths::Coverage read_runs_inside(const JsonReader& from) {
  return {from.require<std::int64_t>("runs", at_least<std::int64_t>(1)),
          from.require<std::int64_t>("inside", at_least<std::int64_t>(0)),
          from.optional<double>("median_half_width", 0.0),
          from.optional<double>("mean_error_named", 0.0),
          from.optional<double>("mean_error_stranger", 0.0)};
}

std::map<std::string, NoveltyWidths::Coverage> read_groups(const JsonReader& from) {
  std::map<std::string, NoveltyWidths::Coverage> groups;
  for (const std::string& name : from.keys())
    groups[name] = read_runs_inside(from.require_object(name));
  return groups;
}

std::map<std::string, double, std::less<>> read_numbers(const JsonReader& from) {
  std::map<std::string, double, std::less<>> numbers;
  for (const std::string& name : from.keys())
    numbers[name] = from.require<double>(name, at_least(0.0));
  return numbers;
}

NoveltyWidths load_novelty_widths() {
  NoveltyWidths result;
  const std::filesystem::path path = data_dir() / "fitted" / "novelty.json";
  if (!std::filesystem::exists(path)) return result;
  const JsonFile file = JsonFile::load(path);
  const JsonReader root = file.root();
  root.require_choice("schema", {"shardwright.novelty/1.0"});
  result.level = root.require<double>("level", between(0.5, 0.999));
  const JsonReader base = root.require_object("base");
  result.data_parallel = half_width(base, "data_parallel");
  result.data_parallel_known_source = half_width(base, "data_parallel_known_source");
  result.model_parallel = half_width(base, "model_parallel");
  const JsonReader axes = root.require_object("axes");
  for (const std::string& axis : axes.keys())
    result.axes[axis] = half_width(axes.require_object(axis), "half_width");
  result.memory_less = half_width(root.require_object("memory"), "less");
  const JsonReader fastest = root.require_object("fastest_layer_s");
  result.fastest_dense_layer_s = fastest.require<double>("dense", at_least(0.0));
  result.fastest_moe_layer_s = fastest.require<double>("moe", at_least(0.0));
  const JsonReader largest = root.require_object("largest");
  result.largest_data_parallel = read_numbers(largest.require_object("data_parallel"));
  result.largest_model_parallel = read_numbers(largest.require_object("model_parallel"));
  const JsonReader coverage = root.require_object("coverage");
  result.all = read_runs_inside(coverage);
  result.by_class = read_groups(coverage.require_object("by_class"));
  result.by_novelty = read_groups(coverage.require_object("by_novelty"));
  result.by_source = read_groups(coverage.require_object("by_source"));
  for (const JsonReader& entry : root.require_array("cells")) {
    NoveltyWidths::Cells& cells = result.cells.emplace_back();
    cells.model_parallel = entry.require<bool>("model_parallel");
    cells.moe = entry.require<bool>("moe");
    cells.stack = entry.require<std::string>("stack");
    cells.gpu = entry.require<std::string>("gpu");
    cells.architecture = entry.require<std::string>("architecture");
    cells.precision = entry.require<std::string>("precision");
    cells.cells = entry.require<std::int64_t>("cells", at_least<std::int64_t>(1));
  }
  return result;
}

/// How many published cells are like a run.
struct Counted {
  std::int64_t gpu = 0, framework = 0, framework_with_experts = 0, pair = 0, precision = 0;
};

Counted count(const std::vector<NoveltyWidths::Cells>& all, const RunKind& run) {
  Counted counted;
  for (const NoveltyWidths::Cells& cells : all) {
    const bool stack = cells.stack == run.stack, gpu = cells.gpu == run.gpu;
    if (stack && cells.moe) counted.framework_with_experts += cells.cells;
    if (gpu && cells.precision == run.precision) counted.precision += cells.cells;
    if (stack) counted.framework += cells.cells;
    if (gpu) counted.gpu += cells.cells;
    if (stack && gpu) counted.pair += cells.cells;
  }
  return counted;
}

bool beyond(const std::map<std::string, double, std::less<>>& largest, std::string_view name,
            double value) {
  const auto limit = largest.find(name);
  return limit != largest.end() && value > limit->second;
}

}  // namespace

AddedWidths NoveltyWidths::of(const RunKind& run) const {
  AddedWidths widths{};
  const auto set = [&](WidthAxis axis, std::string_view name) {
    const auto known = axes.find(name);
    if (known == axes.end()) return;
    double& width = at(widths, axis);
    width = std::sqrt(width * width + known->second * known->second);
  };
  at(widths, WidthAxis::kSource) = run.model_parallel ? model_parallel
                                   : run.known_source ? data_parallel_known_source
                                                      : data_parallel;
  const Counted counted = count(cells, run);
  if (run.moe) set(WidthAxis::kModelClass, "model_class");
  if (run.narrow) set(WidthAxis::kPrecision, "precision");
  const bool new_framework =
      counted.framework == 0 || run.adapters || (run.moe && counted.framework_with_experts == 0);
  if (new_framework) set(WidthAxis::kFramework, run.moe ? "framework_moe" : "framework");
  if (!run.gpu_known) {
    if (counted.gpu < kOften) {
      const bool nothing_alike = run.gpu_estimated && !ran_on(run.architecture);
      set(WidthAxis::kGpu, nothing_alike ? "gpu_estimated" : "gpu");
    } else if (counted.pair < kOften && !new_framework) {
      set(WidthAxis::kFramework, "framework_on_gpu");
    }
    if (run.narrow && counted.precision == 0) set(WidthAxis::kPrecision, "precision_on_gpu");
  }
  const auto& largest = run.model_parallel ? largest_model_parallel : largest_data_parallel;
  if (beyond(largest, "seq_len", run.seq_len) || beyond(largest, "hidden", run.hidden))
    set(WidthAxis::kSize, "size");
  const double fastest = run.moe ? fastest_moe_layer_s : fastest_dense_layer_s;
  if (!run.graphs && run.layer_s > 0 && run.layer_s < fastest)
    at(widths, WidthAxis::kHost) = std::min(kMostOfHost, portable_log(fastest / run.layer_s));
  if (!run.knows_loads) at(widths, WidthAxis::kRouting) = kRealRouting;
  return widths;
}

bool NoveltyWidths::ran_on(std::string_view architecture) const {
  return std::any_of(cells.begin(), cells.end(),
                     [&](const Cells& one) { return one.architecture == architecture; });
}

double NoveltyWidths::most_gpus(bool of_model_parallel) const {
  const auto& largest = of_model_parallel ? largest_model_parallel : largest_data_parallel;
  const auto gpus = largest.find("gpus");
  return gpus == largest.end() ? 0 : gpus->second;
}

const NoveltyWidths& novelty_widths() {
  static const NoveltyWidths widths = load_novelty_widths();
  return widths;
}

}  // namespace shardwright::profiles
