// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/intervals.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/numbers.h"
#include "sim/core/features.h"
#include "sim/cost/cost.h"

namespace shardwright::sim {

namespace {

using profiles::total_of;
using profiles::WidthAxis;

bool names(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// An allocator that empties its cache drains device and host at times that nothing here knows.
constexpr double kRetriesWiden = 2;

bool is_measured_by_user(const profiles::Profile& profile) {
  const auto& widths = profile.calibrated_half_width;
  return std::any_of(widths.begin(), widths.end(), [](double width) { return width > 0; });
}

/// Of experts.
bool knows_loads(const Parallelism& p) {
  return p.expert_load && (p.expert_load->routing == Routing::kBalanced ||
                           p.expert_load->routing == Routing::kMeasured);
}

profiles::RunKind run_kind(const Prediction& prediction, const Model& model,
                           const profiles::Profile& profile, const std::string& source) {
  const Plan& plan = prediction.plan;
  const Precision precision = plan.numerics.precision;
  profiles::RunKind run;
  run.model_parallel = divides_replica(plan);
  run.moe = model.is_moe();
  run.narrow = precision == Precision::kFp8 || precision == Precision::kNvfp4;
  run.adapters = plan.numerics.lora > 0;
  // An input that no run had makes a run less known than its cell.
  const bool published = has_seen_source(profile.uncertainty, source) &&
                         prediction.time.novelty <= profiles::Novelty::kStackOnGpu;
  run.known_source = published && prediction.extrapolated.empty();
  run.gpu_known = published || is_measured_by_user(profile);
  run.gpu_estimated = profile.cost.gemm.provenance.confidence == "estimate";
  run.knows_loads = !run.moe || plan.parallel.expert_capacity || knows_loads(plan.parallel);
  run.graphs = plan.parallel.cuda_graphs == CudaGraphs::kStep || profile.cluster.gpu.is_processor();
  run.stack = profile.stack.family;
  run.gpu = profile.cluster.gpu.id;
  run.architecture = profile.cluster.gpu.architecture;
  run.precision = name_of(precision);
  run.seq_len = static_cast<double>(plan.seq_len);
  run.hidden = static_cast<double>(model.hidden);
  run.layer_s = prediction.time.iteration_s * static_cast<double>(plan.parallel.pp) /
                static_cast<double>(model.layers * plan.grad_accum);
  return run;
}

/// Beyond a node; of model-parallel runs, which take many nodes, beyond the largest published one.
double unseen_doublings(const Cluster& cluster, const Prediction& prediction) {
  const std::int64_t gpus = prediction.plan.gpus;
  const double most = profiles::novelty_widths().most_gpus(true);
  if (!divides_replica(prediction.plan) || most <= 0) return doublings_beyond_node(cluster, gpus);
  return std::max(0.0, portable_log(static_cast<double>(gpus) / most) / portable_log(2));
}

/// What a measured step leaves of `half_width`. What many GPUs lose, one node does not show.
double anchored_half_width(const TimePrediction& time, bool model_parallel, double half_width) {
  const double scale = std::min(time.scale_half_width, half_width);
  const double of_machine = std::sqrt(half_width * half_width - scale * scale);
  const double narrowed = profiles::anchored_uncertainty().half_width(model_parallel, of_machine);
  return std::sqrt(narrowed * narrowed + scale * scale);
}

}  // namespace

double published_half_width(Prediction& prediction, const Model& model,
                            const profiles::Profile& profile, const std::string& source) {
  const profiles::Uncertainty& known = profile.uncertainty;
  TimePrediction& time = prediction.time;
  time.novelty =
      novelty_of(known, source, profile.stack.family, profile.cluster.gpu.id, model.name);
  time.anchored = names(profile.anchored_models, model.name);
  if (!time.anchored && !profile.anchored_models.empty()) {
    prediction.extrapolated.push_back(
        fmt::format("model {}: the profile was anchored by a step of {}, which says nothing "
                    "measurable of other models",
                    model.name, fmt::join(profile.anchored_models, ", ")));
  }
  if (model.recurrence.value_heads > 0) {
    prediction.extrapolated.push_back(
        fmt::format("layers with {}: no published run", name_of(model.recurrence.kind)));
  }
  time.added_half_widths = {};
  if (!profiles::novelty_widths().known() || !known.known()) return 0;
  prediction.memory.of_stranger =
      !has_seen_source(known, source) && profile.stack.memory != MemoryManager::kStatic;
  time.added_half_widths =
      profiles::novelty_widths().of(run_kind(prediction, model, profile, source));
  profiles::AddedWidths& added = time.added_half_widths;
  const double base = at(added, WidthAxis::kSource);
  if (profile.cluster.gpu.is_processor() &&
      total_of(added) < profiles::kUnmeasuredProcessorHalfWidth) {
    added = {};
    at(added, WidthAxis::kGpu) = profiles::kUnmeasuredProcessorHalfWidth;
    return total_of(added);
  }
  if (prediction.memory.allocator_retries > 0)
    at(added, WidthAxis::kRetries) = std::sqrt(kRetriesWiden * kRetriesWiden - 1) * base;
  // Whose runs are published has a loss of scale of its own; others get the mean of all.
  if (!has_seen_source(known, source)) {
    time.scale_half_width = profiles::scale_uncertainty().half_width(
        profile.cluster.network, unseen_doublings(profile.cluster, prediction));
    at(added, WidthAxis::kScale) = time.scale_half_width;
  }
  if (prediction.other_tie_order_s > 0) {
    at(added, WidthAxis::kOrder) =
        std::abs(portable_log(prediction.other_tie_order_s / time.iteration_s)) / 2;
  }
  return total_of(added);
}

void set_intervals(Prediction& prediction, const profiles::Profile& profile, double half_width) {
  TimePrediction& time = prediction.time;
  if (time.anchored)
    half_width = anchored_half_width(time, divides_replica(prediction.plan), half_width);
  // What was measured on this machine narrows all that nobody had measured alike.
  const double all = total_of(time.added_half_widths);
  if (all > 0) {
    for (double& width : time.added_half_widths) width *= half_width / all;
  }
  const auto interval = interval_around(time.iteration_s, half_width);
  std::copy(interval.begin(), interval.end(), time.interval_s);
  time.interval_level = profiles::novelty_widths().level;

  set_memory_interval(prediction.memory, memory_widths(profile));
}

void set_memory_interval(MemoryPrediction& memory, const profiles::MemoryWidths& widths) {
  const auto reserved = static_cast<double>(memory.total_bytes - memory.runtime_bytes);
  const auto at = [&](double log) {
    return static_cast<Bytes>(reserved * portable_exp(log)) + memory.runtime_bytes;
  };
  // Strangers' settings take less more often than more; what is needed beyond decides the verdict
  // and has widths of its own.
  const double less = memory.of_stranger
                          ? std::max(widths.less, profiles::novelty_widths().memory_less)
                          : widths.less;
  memory.interval_bytes[0] = at(-less);
  memory.interval_bytes[1] = at(widths.more);
  memory.verdict = at(kTenthBeyond * widths.more) <= memory.usable_bytes ? MemoryVerdict::kFits
                   : at(-kSixTenthsBeyond * less) <= memory.usable_bytes
                       ? MemoryVerdict::kTight
                       : MemoryVerdict::kDoesNotFit;
}

namespace {

using profiles::CostGroup;

std::size_t place(CostGroup group) {
  return static_cast<std::size_t>(group);
}

}  // namespace

double calibrated_half_width(const profiles::Profile& profile, const KernelTimes& kernels,
                             const StepShares& shares, double published) {
  const auto& widths = profile.calibrated_half_width;
  const bool any = std::any_of(widths.begin(), widths.end(), [](double w) { return w > 0; });
  if (!any || !(shares.total_s > 0)) return published;
  const auto width_of = [&](CostGroup group) {
    const double width = widths[place(group)];
    return width > 0 ? width : published;
  };
  const std::array<std::pair<CostGroup, Nanoseconds>, 3> groups = {
      {{CostGroup::kProducts, kernels.gemm_ns},
       {CostGroup::kAttention, kernels.attention_ns},
       {CostGroup::kMemory, kernels.memory_ns}}};
  double in_all = 0, weighted = 0;
  for (const auto& [group, time_ns] : groups) {
    in_all += static_cast<double>(time_ns);
    weighted += static_cast<double>(time_ns) * width_of(group);
  }
  const double exposed = std::clamp(shares.exposed_s / shares.total_s, 0.0, 1.0);
  const double host = std::clamp(shares.host_s / shares.total_s, 0.0, 1.0 - exposed);
  const double of_kernels = in_all > 0 ? weighted / in_all : published;
  return exposed * width_of(CostGroup::kCollectives) + host * width_of(CostGroup::kHost) +
         (1 - exposed - host) * of_kernels;
}

using profiles::Novelty;
using profiles::Uncertainty;

Novelty novelty_of(const Uncertainty& uncertainty, std::string_view source, std::string_view stack,
                   std::string_view gpu, std::string_view model) {
  if (has_seen_cell(uncertainty, source, stack, gpu, model)) return Novelty::kCell;
  if (has_seen_often(uncertainty, stack, gpu)) return Novelty::kStackOnGpu;
  return has_seen_source(uncertainty, source) || has_seen_gpu(uncertainty, gpu)
             ? Novelty::kSourceOnly
             : Novelty::kNothing;
}

std::array<double, 2> interval_around(double time_s, double half_width) {
  return {time_s * portable_exp(-half_width), time_s * portable_exp(half_width)};
}

namespace {

constexpr std::string_view kMeasured = "stack with measured memory";

}  // namespace

profiles::MemoryWidths memory_widths(const profiles::Profile& profile) {
  const double estimated = profiles::model_parallel_uncertainty().memory_half_width;
  if (profile.stack.memory == MemoryManager::kEstimatedAllocator && estimated > 0)
    return {estimated, estimated};
  const profiles::Uncertainty& known = profile.uncertainty;
  const auto measured = known.seen.find(kMeasured);
  const bool is_measured =
      profile.stack.memory == MemoryManager::kStatic ||
      (measured != known.seen.end() && std::find(measured->second.begin(), measured->second.end(),
                                                 profile.stack.family) != measured->second.end());
  return is_measured ? known.memory : known.memory_of_others;
}

double asked_headroom(const profiles::Profile& profile, std::int64_t ranks) {
  const auto usable = static_cast<double>(profile.cluster.memory_bytes_per_rank(ranks));
  const double framework =
      std::max(0.0, usable - static_cast<double>(profile.cluster.gpu.runtime_bytes));
  if (usable <= 0) return 0;
  // What is needed is rounded to bytes.
  constexpr double kByte = 1;
  const double shrink = -portable_expm1(-kTenthBeyond * memory_widths(profile).more);
  return shrink > 0 ? std::min(0.99, (framework * shrink + kByte) / usable) : 0;
}

namespace {

constexpr std::string_view kStackOnGpu = "stack on gpu";
constexpr std::string_view kSource = "source";
constexpr std::string_view kCell = "cell";
constexpr std::ptrdiff_t kOften = 3;  // cells
constexpr double kBitsPerByte = 8;

struct Number {
  std::string_view name;
  std::optional<double> value;  // none: plays no part in this run
};

struct Word {
  std::string_view kind;
  std::string word;
};

std::string stack_on_gpu(std::string_view stack, std::string_view gpu) {
  return fmt::format("{} on {}", stack, gpu);
}

/// As HeldOutRun::cell, and what it ran.
std::string cell_on_stack(std::string_view source, std::string_view gpu, std::string_view model,
                          std::string_view stack) {
  return fmt::format("{} | {} | {} | {}", source, gpu, model, stack);
}

std::array<Number, 7> numbers_of(const Model& model, const Cluster& cluster, const Plan& plan) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const bool over_nodes = plan.gpus > cluster.gpus_per_node;
  return {{{"seq_len", number(plan.seq_len)},
           {"tokens_per_micro_step", number(plan.seq_len) * number(plan.micro_batch)},
           {"gpus", number(plan.gpus)},
           {"network_gbps_per_node",
            over_nodes ? std::optional(cluster.node_net_bytes_per_s() * kBitsPerByte / 1e9)
                       : std::nullopt},
           {"parameters_billion", number(count_parameters(model).total(model.layers)) / 1e9},
           {"hidden", number(model.hidden)},
           {"vocab", number(model.vocab)}}};
}

std::array<Word, 6> knob_words(const Cluster& cluster, std::string_view stack, const Plan& plan) {
  return {{{"gpu", cluster.gpu.id},
           {"stack", std::string(stack)},
           {"strategy", std::string(name_of(plan.strategy))},
           {"recompute", plan.ckpt_layers == 0 ? "none" : recompute_name(plan)},
           {"attention", std::string(name_of(plan.attention))},
           {"offload", offload_name(plan)}}};
}

bool contains(const Uncertainty& uncertainty, std::string_view kind, std::string_view word) {
  const auto at = uncertainty.seen.find(kind);
  return at != uncertainty.seen.end() &&
         std::find(at->second.begin(), at->second.end(), word) != at->second.end();
}

void add_word(Uncertainty& uncertainty, std::string_view kind, std::string word) {
  std::vector<std::string>& words = uncertainty.seen[std::string(kind)];
  const auto at = std::lower_bound(words.begin(), words.end(), word);
  if (at == words.end() || *at != word) words.insert(at, std::move(word));
}

}  // namespace

void add_run(Uncertainty& uncertainty, const Model& model, const Cluster& cluster,
             std::string_view stack, const Plan& plan, std::string_view source) {
  for (const Number& number : numbers_of(model, cluster, plan)) {
    if (!number.value) continue;
    const std::array<double, 2> own = {*number.value, *number.value};
    auto& range = uncertainty.ranges.try_emplace(std::string(number.name), own).first->second;
    range = {std::min(range[0], own[0]), std::max(range[1], own[1])};
  }
  for (Word& word : knob_words(cluster, stack, plan)) {
    add_word(uncertainty, word.kind, std::move(word.word));
  }
  add_word(uncertainty, kStackOnGpu, stack_on_gpu(stack, cluster.gpu.id));
  add_word(uncertainty, kSource, std::string(source));
  add_word(uncertainty, kCell, cell_on_stack(source, cluster.gpu.id, model.name, stack));
}

std::vector<std::string> extrapolations(const profiles::Profile& profile, const Model& model,
                                        const Plan& plan) {
  const Uncertainty& uncertainty = profile.uncertainty;
  const Cluster& cluster = profile.cluster;
  const std::string& stack = profile.stack.family;
  const profiles::ModelParallelUncertainty& divided = profiles::model_parallel_uncertainty();
  const bool all_divide = !contains(uncertainty, "stack", stack) && divided.runs_of(stack);
  if (divides_replica(plan) || all_divide)
    return divided.extrapolations(stack, cluster.gpu.id, plan.gpus);
  std::vector<std::string> sentences;
  if (!uncertainty.known()) return sentences;
  bool all_words = true;
  for (const Word& word : knob_words(cluster, stack, plan)) {
    if (contains(uncertainty, word.kind, word.word)) continue;
    const bool is_gpu = word.kind == "gpu";
    if (is_gpu || word.kind == "stack") all_words = false;
    sentences.push_back(fmt::format("{} {}: {}", word.kind, word.word,
                                    is_gpu ? "no training run in the ledger" : "no published run"));
  }
  if (all_words && !seen_on_gpu(uncertainty, stack, cluster.gpu.id)) {
    sentences.push_back(
        fmt::format("framework {} with gpu {}: no published run", stack, cluster.gpu.id));
  }
  for (const Number& number : numbers_of(model, cluster, plan)) {
    const auto at = uncertainty.ranges.find(number.name);
    if (!number.value || at == uncertainty.ranges.end()) continue;
    const auto& [low, high] = at->second;
    // A rate computed back from bytes may differ in its last digit.
    if (*number.value > high * (1 + 1e-9)) {
      sentences.push_back(fmt::format("{} {:.7g} is above the largest fitted, {:.7g}", number.name,
                                      *number.value, high));
    } else if (*number.value < low * (1 - 1e-9)) {
      sentences.push_back(fmt::format("{} {:.7g} is below the smallest fitted, {:.7g}", number.name,
                                      *number.value, low));
    }
  }
  return sentences;
}

bool seen_on_gpu(const Uncertainty& uncertainty, std::string_view stack, std::string_view gpu) {
  return contains(uncertainty, kStackOnGpu, stack_on_gpu(stack, gpu));
}

bool has_seen_often(const Uncertainty& uncertainty, std::string_view stack, std::string_view gpu) {
  const auto cells = uncertainty.seen.find(kCell);
  if (cells == uncertainty.seen.end()) return false;
  const std::string of_gpu = " | " + std::string(gpu) + " | ",
                    of_stack = " | " + std::string(stack);
  return std::count_if(cells->second.begin(), cells->second.end(), [&](const std::string& cell) {
           return cell.ends_with(of_stack) && cell.find(of_gpu) != std::string::npos;
         }) >= kOften;
}

bool has_seen_gpu(const Uncertainty& uncertainty, std::string_view gpu) {
  return contains(uncertainty, "gpu", gpu);
}

bool has_seen_source(const Uncertainty& uncertainty, std::string_view source) {
  return contains(uncertainty, kSource, source);
}

bool has_seen_cell(const Uncertainty& uncertainty, std::string_view source, std::string_view stack,
                   std::string_view gpu, std::string_view model) {
  return contains(uncertainty, kCell, cell_on_stack(source, gpu, model, stack));
}

}  // namespace shardwright::sim
