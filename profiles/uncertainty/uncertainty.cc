// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/uncertainty.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {

namespace {

constexpr std::string_view kResidualsSchema = "shardwright.residuals/1.0";
constexpr double kWidestError = 10;  // a factor of 20,000
constexpr std::array<std::string_view, kNovelties> kNoveltyNames = {"cell", "stack_gpu",
                                                                    "source_only", "nothing"};

HeldOutRun read_run(const JsonReader& from) {
  from.reject_unknown_keys({"id", "source", "stack", "gpu", "model", "log_error_fitted",
                            "log_error", "log_error_cell_out", "log_error_source_out", "inside"});
  HeldOutRun run;
  using Text = std::pair<const char*, std::string*>;
  for (const auto& [key, text] : std::array<Text, 5>{{{"id", &run.id},
                                                      {"source", &run.source},
                                                      {"stack", &run.stack},
                                                      {"gpu", &run.gpu},
                                                      {"model", &run.model}}}) {
    *text = from.require<std::string>(key);
  }
  using Number = std::pair<const char*, double*>;
  for (const auto& [key, error] :
       std::array<Number, 4>{{{"log_error_fitted", &run.log_error_fitted},
                              {"log_error", &run.log_error},
                              {"log_error_cell_out", &run.log_error_cell_out},
                              {"log_error_source_out", &run.log_error_source_out}}}) {
    *error = from.require<double>(key, between(-kWidestError, kWidestError));
  }
  const std::vector<bool> inside = from.require_list<bool>("inside");
  if (inside.size() != run.inside.size()) from.fail("inside", "three of true and false");
  std::copy(inside.begin(), inside.end(), run.inside.begin());
  return run;
}

std::array<double, 2> read_range(const JsonReader& from, const std::string& key) {
  const std::vector<double> pair = from.require_list<double>(key);
  if (pair.size() != 2 || !(pair[0] <= pair[1])) from.fail(key, "two rising numbers");
  return {pair[0], pair[1]};
}

MovedConstant read_constant(const JsonReader& from) {
  from.reject_unknown_keys({"name", "value", "run_out", "source_out"});
  return {from.require<std::string>("name"), from.require<double>("value", above(0.0)),
          read_range(from, "run_out"), read_range(from, "source_out")};
}

MemoryWidths read_memory(const JsonReader& from) {
  return {from.require<double>("more", between(0.0, kWidestError)),
          from.require<double>("less", between(0.0, kWidestError))};
}

JsonFile open(const std::filesystem::path& file) {
  JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kResidualsSchema});
  root.reject_unknown_keys({"schema", "source", "command", "date", "level", "memory",
                            "simulated_coverage", "ranges", "seen", "constants", "runs"});
  root.require_object("memory").reject_unknown_keys(
      {"runs", "more", "less", "inside_run_out", "inside_source_out", "new_software"});
  return document;
}

}  // namespace

std::string_view name_of(Novelty novelty) {
  return name_in(kNoveltyNames, novelty);
}

std::string shipped_residuals() {
  return data_dir() / "fitted" / "residuals.json";
}

Uncertainty load_uncertainty(const std::string& file) {
  const JsonFile document = open(file);
  const JsonReader root = document.root();
  Uncertainty result;
  const JsonReader memory = root.require_object("memory");
  result.memory = read_memory(memory);
  const JsonReader others = memory.require_object("new_software");
  others.reject_unknown_keys({"sources", "more", "less"});
  result.memory_of_others = read_memory(others);
  const JsonReader ranges = root.require_object("ranges");
  for (const std::string& name : ranges.keys()) {
    result.ranges[name] = read_range(ranges, name);
  }
  const JsonReader seen = root.require_object("seen");
  for (const std::string& kind : seen.keys()) {
    result.seen[kind] = seen.require_list<std::string>(kind);
  }
  return result;
}

Uncertainty load_uncertainty() {
  const std::string file = shipped_residuals();
  static KeptFiles<Uncertainty> kept(&load_uncertainty);
  return std::filesystem::exists(file) ? *kept.get(file) : Uncertainty{};
}

HeldOutRecord load_held_out(const std::string& file) {
  const JsonFile document = open(file);
  const JsonReader root = document.root();
  const auto count = [](const JsonReader& from, const char* key) {
    return from.require<std::int64_t>(key, at_least(std::int64_t{0}));
  };
  HeldOutRecord result;
  result.level = root.require<double>("level", between(0.5, 0.999));
  result.simulated_coverage = root.require<double>("simulated_coverage", between(0.0, 1.0));
  const JsonReader memory = root.require_object("memory");
  result.peaks = count(memory, "runs");
  result.peaks_run_out = count(memory, "inside_run_out");
  result.peaks_source_out = count(memory, "inside_source_out");
  for (const JsonReader& constant : root.require_array("constants")) {
    result.constants.push_back(read_constant(constant));
  }
  for (const JsonReader& run : root.require_array("runs")) result.runs.push_back(read_run(run));
  return result;
}

namespace {

constexpr std::array<std::string_view, kWidthAxes> kAxisNames = {
    "source", "model_class", "precision", "gpu",   "framework", "size",
    "host",   "routing",     "scale",     "order", "retries"};

}  // namespace

std::string_view name_of(WidthAxis axis) {
  return name_in(kAxisNames, axis);
}

double total_of(const AddedWidths& widths) {
  double squares = 0;
  for (const double width : widths) squares += width * width;
  return std::sqrt(squares);
}

namespace {

/// (w/h)^2; 1 where a measured step tells nothing.
double own_part(const AnchoredUncertainty& uncertainty, bool model_parallel, double half_width) {
  const auto& widths = uncertainty.widths;
  const auto at = std::find_if(widths.begin(), widths.end(), [&](const AnchoredWidth& width) {
    return width.model_parallel == model_parallel;
  });
  if (at == widths.end() || !(half_width > at->own)) return 1;
  return at->own * at->own / (half_width * half_width);
}

AnchoredUncertainty load_anchored_uncertainty() {
  AnchoredUncertainty uncertainty;
  const std::filesystem::path path = data_dir() / "fitted" / "anchored_residuals.json";
  if (!std::filesystem::exists(path)) return uncertainty;
  const JsonFile file = JsonFile::load(path);
  uncertainty.level = file.root().require<double>("level", between(0.01, 0.999));
  for (const JsonReader& entry : file.root().require_array("widths")) {
    AnchoredWidth& width = uncertainty.widths.emplace_back();
    width.model_parallel = entry.require<bool>("model_parallel");
    width.own = entry.require<double>("own", between(0.0, 10.0));
    width.runs = entry.require<std::int64_t>("runs", at_least<std::int64_t>(1));
    width.cells = entry.require<std::int64_t>("cells", at_least<std::int64_t>(1));
  }
  return uncertainty;
}

}  // namespace

double AnchoredUncertainty::carried_share(bool model_parallel, double half_width) const {
  return 1 - own_part(*this, model_parallel, half_width);
}

double AnchoredUncertainty::half_width(bool model_parallel, double half_width) const {
  const double own = own_part(*this, model_parallel, half_width);
  return half_width * std::sqrt(own * (2 - own));
}

const AnchoredUncertainty& anchored_uncertainty() {
  static const AnchoredUncertainty uncertainty = load_anchored_uncertainty();
  return uncertainty;
}

namespace {

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

ModelParallelUncertainty load_model_parallel_uncertainty() {
  ModelParallelUncertainty uncertainty;
  const std::filesystem::path path = data_dir() / "fitted" / "model_parallel_residuals.json";
  if (!std::filesystem::exists(path)) return uncertainty;
  const JsonFile file = JsonFile::load(path);
  if (const auto memory = file.root().find_object("memory")) {
    uncertainty.memory_half_width = memory->require<double>("half_width", between(0.0, 10.0));
  }
  for (const JsonReader& gpu : file.root().require_array("gpus")) {
    uncertainty.gpus.push_back(gpu.value<std::string>());
  }
  uncertainty.most_gpus = file.root().require<std::int64_t>("most_gpus", at_least<std::int64_t>(1));
  for (const JsonReader& entry : file.root().require_array("stacks")) {
    ModelParallelRuns& runs = uncertainty.stacks.emplace_back();
    runs.stack = entry.require<std::string>("stack");
    runs.series = entry.require<std::int64_t>("series", at_least<std::int64_t>(1));
    for (const JsonReader& gpu : entry.require_array("gpus")) {
      runs.gpus.push_back(gpu.value<std::string>());
    }
  }
  return uncertainty;
}

}  // namespace

const ModelParallelRuns* ModelParallelUncertainty::runs_of(const std::string& stack) const {
  const auto at = std::find_if(stacks.begin(), stacks.end(),
                               [&](const ModelParallelRuns& runs) { return runs.stack == stack; });
  return at == stacks.end() ? nullptr : &*at;
}

std::vector<std::string> ModelParallelUncertainty::extrapolations(const std::string& stack,
                                                                  const std::string& gpu,
                                                                  std::int64_t gpus_of_plan) const {
  std::vector<std::string> sentences;
  if (stacks.empty()) return sentences;
  const ModelParallelRuns* runs = runs_of(stack);
  if (!has(gpus, gpu)) {
    sentences.push_back(fmt::format("gpu {}: no published model-parallel run", gpu));
  }
  if (runs == nullptr) {
    sentences.push_back(fmt::format("framework {}: no published model-parallel run", stack));
  } else if (has(gpus, gpu) && !has(runs->gpus, gpu)) {
    sentences.push_back(fmt::format("framework {} with gpu {}: no published run", stack, gpu));
  }
  if (gpus_of_plan > most_gpus) {
    sentences.push_back(
        fmt::format("gpus {} is above the largest measured, {}", gpus_of_plan, most_gpus));
  }
  return sentences;
}

const ModelParallelUncertainty& model_parallel_uncertainty() {
  static const ModelParallelUncertainty uncertainty = load_model_parallel_uncertainty();
  return uncertainty;
}

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

namespace {

ScaleUncertainty load_scale_uncertainty() {
  ScaleUncertainty uncertainty;
  const std::filesystem::path path = data_dir() / "fitted" / "scale_residuals.json";
  if (!std::filesystem::exists(path)) return uncertainty;
  const JsonFile file = JsonFile::load(path);
  const JsonReader root = file.root();
  uncertainty.half_width_per_doubling =
      root.require<double>("half_width_per_doubling", between(0.0, 1.0));
  uncertainty.unmeasured_factor = root.require<double>("unmeasured_factor", between(1.0, 10.0));
  for (const JsonReader& network : root.require_array("networks"))
    uncertainty.networks.push_back(network.value<std::string>());
  for (const JsonReader& machine : root.require_array("machines")) {
    const auto loss = machine.require<double>("loss", between(-1.0, 1.0));
    uncertainty.least_loss =
        uncertainty.machines == 0 ? loss : std::min(uncertainty.least_loss, loss);
    uncertainty.largest_loss =
        uncertainty.machines == 0 ? loss : std::max(uncertainty.largest_loss, loss);
    uncertainty.series += machine.require<std::int64_t>("series", at_least<std::int64_t>(1));
    ++uncertainty.machines;
  }
  return uncertainty;
}

}  // namespace

bool ScaleUncertainty::measured(const std::string& network) const {
  return std::find(networks.begin(), networks.end(), network) != networks.end();
}

double ScaleUncertainty::half_width(const std::string& network, double doublings) const {
  return doublings * half_width_per_doubling * (measured(network) ? 1 : unmeasured_factor);
}

const ScaleUncertainty& scale_uncertainty() {
  static const ScaleUncertainty uncertainty = load_scale_uncertainty();
  return uncertainty;
}

}  // namespace shardwright::profiles
