// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/whole_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>
#include <utility>

#include "profiles/data_file.h"
#include "profiles/gpu_file.h"
#include "profiles/operations.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/base/words.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/robustness.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {

namespace {

using profiles::WholeRun;

constexpr double kSecondsPerHour = 3600;
constexpr std::int64_t kUsualSeqLen = 4096;
// A run whose GPUs nobody published takes about this long at this share of the peak.
constexpr double kAssumedDays = 30;
constexpr double kAssumedMfu = 0.4;
constexpr int kHalvings = 3;  // of the GPUs of a run with tensor or pipeline parallelism

std::int64_t assumed_gpus(const WholeRun& run, std::int64_t node) {
  const double flops_per_s = kAssumedMfu * run.peak_flops;
  const double gpus = 6 * run.parameters * run.tokens / flops_per_s / (kAssumedDays * 86400);
  const std::int64_t most = std::max(kMostGpus / node, std::int64_t{1});
  const auto nodes =
      static_cast<std::uint64_t>(std::clamp(gpus / static_cast<double>(node), 1.0, 1e9));
  return std::min(static_cast<std::int64_t>(std::bit_floor(nodes)), most) * node;
}

/// Strategies that the published sharding allows; those that frameworks offer where none is told.
std::vector<Strategy> strategies_of(const WholeRun& run) {
  const std::string words = lower_case(run.sharding);
  const auto says = [&](std::string_view word) { return words.find(word) != words.npos; };
  if (run.data_parallel()) {
    if (says("hsdp") || says("mics")) return {Strategy::kHsdp};
    if (says("zero-3") || says("fsdp")) {
      return {Strategy::kFsdp1, Strategy::kFsdp2, Strategy::kHsdp};
    }
    if (says("zero-2")) return {Strategy::kZero2};
    if (says("zero-1")) return {Strategy::kZero1};
  }
  return {Strategy::kDdp, Strategy::kZero1, Strategy::kFsdp1, Strategy::kFsdp2, Strategy::kHsdp};
}

void hold_recomputation(const WholeRun& run, Request& request) {
  const std::string words = lower_case(run.recompute);
  if (words == "full") {
    request.recompute = Recomputation{Recompute::kFull, 0};
    request.ckpt_layers = run.model->layers;
  } else if (words.starts_with("none") && words.find("or") == words.npos) {
    request.ckpt_layers = 0;
  }
}

/// Sequences of a step.
std::int64_t sequences_of(const WholeRun& run, std::int64_t seq_len,
                          std::vector<std::string>& assumed) {
  double tokens = 0;
  if (run.global_batch_tokens) {
    tokens = *run.global_batch_tokens;
  } else {
    tokens = usual_batch_tokens(
        critical_tokens(*run.model, run.tokens, profiles::load_operations()), seq_len);
    assumed.push_back(fmt::format("a usual batch, {:.3g} M tokens", tokens / 1e6));
  }
  return std::max<std::int64_t>(1, std::llround(tokens / static_cast<double>(seq_len)));
}

/// On as many GPUs as share the sequences of a step evenly by data parallelism alone.
void share_batch(std::int64_t node, Request& request, std::vector<std::string>& assumed) {
  const std::int64_t sequences = request.global_batch.value_or(1);
  if (request.gpus > sequences) {
    const std::int64_t shared = std::max(sequences / node, std::int64_t{1}) * node;
    assumed.push_back(
        fmt::format("steps on {} GPUs, because data parallelism alone gives each at least one of "
                    "{} sequences",
                    shared, sequences));
    request.gpus = shared;
  }
  const std::int64_t unit = request.gpus * request.micro_batch.value_or(1);
  request.global_batch = std::max<std::int64_t>(1, sequences / unit) * unit;
}

std::optional<sim::Prediction> best_of(const Request& request, const Model& model,
                                       const profiles::Profile& profile) {
  const std::vector<Scenario> scenarios{as_predicted(profile)};
  Search search(model, scenarios, space_of(sharing_data_alone(request), model, profile), {});
  const std::vector<Found> best = search.best(1);
  if (best.empty()) return std::nullopt;
  return best.front().prediction;
}

/// What is published, held fixed.
Request request_of(const WholeRun& run, std::int64_t node, std::vector<std::string>& assumed) {
  Request request;
  request.attention = AttentionKind::kFlash;
  request.seq_len = run.seq_len;
  if (run.seq_len == 0) {
    request.seq_len = kUsualSeqLen;
    assumed.push_back(fmt::format("sequences of {} tokens", kUsualSeqLen));
  }
  request.gpus = run.gpus.value_or(0);
  if (!run.gpus) {
    request.gpus = assumed_gpus(run, node);
    assumed.push_back(fmt::format("{} GPUs", request.gpus));
  } else if (*run.gpus > node) {
    request.gpus = *run.gpus / node * node;
  }
  request.strategies = strategies_of(run);
  hold_recomputation(run, request);
  if (run.data_parallel()) {
    request.micro_batch = run.micro_batch;
    if (run.sharding.empty())
      assumed.emplace_back("the layout that the search prefers, because none is published");
  }
  request.global_batch = sequences_of(run, request.seq_len, assumed);
  return request;
}

/// The best of the published kind, else of any. Where tensor and pipeline parallelism kept steps
/// efficient on many GPUs, data parallelism alone is planned on as many as cost the least.
std::optional<sim::Prediction> best_plan(const WholeRun& run, Request request,
                                         const profiles::Profile& profile,
                                         std::vector<std::string>& assumed) {
  Model model = *run.model;
  model.max_positions = std::max(model.max_positions, request.seq_len);
  std::optional<sim::Prediction> best;
  const auto try_one = [&](const Request& one) {
    try {
      std::optional<sim::Prediction> found = best_of(one, model, profile);
      if (found && (!best || found->time.tokens_per_gpu_s > best->time.tokens_per_gpu_s))
        best = std::move(found);
    } catch (const InvalidPlan&) {
      // A combination that makes no sense on these GPUs.
    }
  };
  const auto try_all = [&] {
    Request one = request;
    for (int halvings = 0; halvings <= (run.data_parallel() ? 0 : kHalvings); ++halvings) {
      try_one(one);
      if (one.gpus % (2 * profile.cluster.gpus_per_node) != 0) break;
      one.gpus /= 2;
    }
  };
  try_all();
  if (!best) {
    request.strategies.clear();
    request.recompute.reset();
    request.ckpt_layers.reset();
    assumed.emplace_back("any plan that fits, because none of the published kind does");
    try_all();
  }
  if (!best) {
    assumed.emplace_back("no plan fits");
  } else if (best->plan.gpus != request.gpus) {
    assumed.push_back(fmt::format("steps on {} GPUs, where they cost the least", best->plan.gpus));
  }
  return best;
}

}  // namespace

std::string stack_of_software(const std::string& software) {
  static constexpr std::array<NameWord, 9> kWords = {{{"foundry", "mpt-eager"},
                                                      {"composer", "mpt-eager"},
                                                      {"transformers", "hf-eager"},
                                                      {"megatron", "torch-eager"},
                                                      {"neox", "torch-eager"},
                                                      {"deepspeed", "torch-eager"},
                                                      {"fairseq", "torch-eager"},
                                                      {"nanotron", "torch-eager"},
                                                      {"hai-llm", "torch-eager"}}};
  return by_words(software, kWords, "torch-compile-eager-loss");
}

std::string gpu_of_name(const std::string& published) {
  static constexpr std::array<NameWord, 10> kAliases = {{{"a800-80g", "a100-80g"},
                                                         {"a800", "a100-80g"},
                                                         {"a100", "a100-40g"},
                                                         {"h100", "h100-80g"},
                                                         {"h800-80g", "h800"},
                                                         {"gh200-96g", "gh200"},
                                                         {"v100", "v100-32g"},
                                                         {"mi250", "mi250x"},
                                                         {"h200-141g", "h200"},
                                                         {"b200-180g", "b200"}}};
  std::string name = lower_case(published);
  for (const std::string_view form : {"-sxm5", "-sxm4", "-sxm3", "-sxm2", "-sxm"}) {
    if (name.ends_with(form)) {
      name.resize(name.size() - form.size());
      break;
    }
  }
  const std::vector<std::string> known = profiles::shipped_names(profiles::DataKind::kGpu);
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  const auto alias = std::find_if(kAliases.begin(), kAliases.end(),
                                  [&](const NameWord& word) { return word.in_name == name; });
  if (alias == kAliases.end()) return "";
  const std::string meant(alias->meaning);
  return std::find(known.begin(), known.end(), meant) == known.end() ? "" : meant;
}

IdealHoursOf::IdealHoursOf(double analytic_mfu, std::vector<std::string> overrides)
    : analytic_mfu_(analytic_mfu), overrides_(std::move(overrides)) {}

const profiles::Profile& IdealHoursOf::profile_of(const std::string& cluster,
                                                  const std::string& stack) {
  const std::string key = cluster + " " + stack;
  const auto at = profiles_.find(key);
  if (at != profiles_.end()) return at->second;
  return profiles_.emplace(key, profiles::load_profile(cluster, stack, overrides_)).first->second;
}

IdealHours IdealHoursOf::operator()(const WholeRun& run) {
  std::vector<std::string> assumed;
  if (std::optional<IdealHours> hours = planned(run, assumed)) return *std::move(hours);
  return analytic(run, std::move(assumed));
}

std::optional<IdealHours> IdealHoursOf::planned(const WholeRun& run,
                                                std::vector<std::string>& assumed) {
  if (!run.model) {
    assumed.push_back(run.no_model);
    return std::nullopt;
  }
  const std::string gpu = gpu_of_name(run.gpu);
  if (gpu.empty()) {
    assumed.push_back(fmt::format("no data of the GPU {}", run.gpu));
    return std::nullopt;
  }
  IdealHours result;
  result.cluster = profiles::load_gpu(gpu).usual_cluster;
  std::optional<sim::Prediction> best;
  if (shares_more_than_data(run)) {
    result.stack = model_parallel_stack_of(run.software);
    const profiles::Profile& profile = profile_of(result.cluster, result.stack);
    std::vector<std::string> told;
    best =
        published_layout(run, request_of(run, profile.cluster.gpus_per_node, told), profile, told);
    if (best) assumed = std::move(told);
  }
  if (!best && !run.experts) {
    result.stack = stack_of_software(run.software);
    const profiles::Profile& profile = profile_of(result.cluster, result.stack);
    const std::int64_t node = profile.cluster.gpus_per_node;
    Request request = request_of(run, node, assumed);
    if (!run.data_parallel()) {
      assumed.push_back(fmt::format("data parallelism alone instead of tensor {} x pipeline {}",
                                    std::max<std::int64_t>(1, run.tensor),
                                    std::max<std::int64_t>(1, run.pipeline)));
    }
    share_batch(node, request, assumed);
    best = best_plan(run, request, profile, assumed);
  }
  if (!best) {
    if (run.experts) assumed.emplace_back("no plan fits");
    return std::nullopt;
  }
  const sim::TimePrediction& time = best->time;
  result.gpu_hours = run.tokens / time.tokens_per_gpu_s / kSecondsPerHour;
  result.step_half_width = portable_log(time.interval_s[1] / time.interval_s[0]) / 2;
  result.added_half_widths = time.added_half_widths;
  result.plan = best->plan;
  result.assumed = std::move(assumed);
  return result;
}

IdealHours IdealHoursOf::analytic(const WholeRun& run, std::vector<std::string> assumed) const {
  IdealHours result;
  const double flops = (6 * run.matmul_parameters + run.attention_flops) * run.tokens;
  result.gpu_hours = flops / (analytic_mfu_ * run.peak_flops) / kSecondsPerHour;
  assumed.push_back(
      fmt::format("an analytic step: its model FLOPs at {:.0f} % of the 16-bit peak, the median of "
                  "published steady steps",
                  100 * analytic_mfu_));
  result.assumed = std::move(assumed);
  return result;
}

namespace {

using profiles::WholeRun;

// Batches are published rounded: a batch this much off is the one that fills the pipeline.
constexpr double kRoundedBatch = 0.1;

/// Sequences of a step near `sequences` that `replicas` share and, where the published number
/// leaves that open, whose micro-batches of one sequence are whole rounds of `stages`.
std::int64_t shared_sequences(double sequences, std::int64_t replicas, std::int64_t stages) {
  const double each = sequences / static_cast<double>(replicas);
  const auto rounds = static_cast<double>(stages);
  const double full = std::max(1.0, std::round(each / rounds)) * rounds;
  const bool fills = std::abs(full / each - 1) <= kRoundedBatch;
  return std::max<std::int64_t>(1, std::llround(fills ? full : each)) * replicas;
}

void hold_layout(const WholeRun& run, const Stack& stack, Request& request) {
  request.strategies.clear();
  if (stack.optimizer.bucketed && lower_case(run.sharding).starts_with("zero-1")) {
    request.strategies = {Strategy::kDistributedOptimizer};
  }
  const auto given = [](std::int64_t size) {
    return size > 0 ? std::optional<std::int64_t>(size) : std::nullopt;
  };
  GivenParallelism& parallel = request.parallel;
  parallel.tp = given(run.tensor);
  parallel.pp = given(run.pipeline);
  parallel.ep = given(run.expert);
  parallel.cp = 1;
  if (stack.id == "megatron-deepspeed") parallel.virtual_stages = 1;  // DeepSpeed has none
  // Where one of the sizes is published the others would have been told.
  if (!run.data_parallel()) {
    parallel.tp = parallel.tp.value_or(1);
    parallel.pp = parallel.pp.value_or(1);
  }
  if (lower_case(run.precision).starts_with("fp8")) parallel.precision = Precision::kFp8;
  const std::string words = lower_case(run.software);
  const auto says = [&](std::string_view word) { return words.find(word) != words.npos; };
  if (says("dualpipe")) {  // whose point is that exchanges of experts hide
    parallel.pp_schedule = PipelineKind::kDualpipe;
    parallel.ep_overlap = true;
  }
  if (says("zero-bubble")) parallel.pp_schedule = PipelineKind::kZb1p;
  if (says("deepep")) parallel.dispatcher = Dispatcher::kDeepEp;
  // No device takes more than its share (DeepSeek-V2, arXiv 2405.04434 2.2.3), or its operator says
  // that loads were even all along (DeepSeek-V3, arXiv 2412.19437 2.1.2).
  if (says("token dropping") || says("balanced loads"))
    parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
  if (lower_case(run.recompute).find("mla up-projection") != std::string::npos) {
    request.recompute = Recomputation{Recompute::kPieces, kPieceNorm | kPieceMlaUpProjection};
  }
}

std::optional<sim::Prediction> fastest(const Request& request, const Model& model,
                                       const profiles::Profile& profile) {
  try {
    const std::vector<Scenario> scenarios{as_predicted(profile)};
    std::vector<Found> best =
        Search(model, scenarios, space_of(request, model, profile), {}).best(1);
    if (best.empty()) return std::nullopt;
    return std::move(best.front().prediction);
  } catch (const InvalidPlan&) {  // sizes that do not divide this model or these GPUs
    return std::nullopt;
  }
}

}  // namespace

bool shares_more_than_data(const WholeRun& run) {
  return !run.data_parallel() || run.experts;
}

std::string by_words(const std::string& name, std::span<const NameWord> words,
                     std::string_view otherwise) {
  const std::string lower = lower_case(name);
  const auto found = std::find_if(words.begin(), words.end(), [&](const NameWord& word) {
    return lower.find(word.in_name) != lower.npos;
  });
  return std::string(found == words.end() ? otherwise : found->meaning);
}

std::string model_parallel_stack_of(const std::string& software) {
  static constexpr std::array<NameWord, 5> kWords = {{{"deepspeed", "megatron-deepspeed"},
                                                      {"neox", "megatron-deepspeed"},
                                                      {"nanotron", "nanotron"},
                                                      {"torchtitan", "torch-compile"},
                                                      {"megatron", "megatron-core"}}};
  return by_words(software, kWords, "megatron-core");
}

std::optional<sim::Prediction> published_layout(const WholeRun& run, Request request,
                                                const profiles::Profile& profile,
                                                std::vector<std::string>& assumed) {
  hold_layout(run, profile.stack, request);
  const std::int64_t stages = request.parallel.pp.value_or(1);
  const std::int64_t replica = request.parallel.tp.value_or(1) * stages;
  if (request.gpus % replica != 0) return std::nullopt;
  // Replicas that are still to be found share a batch that all of their numbers divide.
  const std::int64_t replicas = run.data_parallel() ? request.gpus : request.gpus / replica;
  request.global_batch = shared_sequences(
      static_cast<double>(request.global_batch.value_or(replicas)), replicas, stages);
  Model model = *run.model;
  model.max_positions = std::max(model.max_positions, request.seq_len);
  std::optional<sim::Prediction> best = fastest(request, model, profile);
  if (!best) {
    // What was run did fit, by means that its software has and this stack has not.
    profiles::Profile roomy = profile;
    roomy.cluster.gpu.memory_bytes *= 2;
    best = fastest(request, model, roomy);
    if (best) assumed.emplace_back("that the published layout fits, as it did");
  }
  if (!best && (request.recompute || request.ckpt_layers)) {
    request.recompute.reset();
    request.ckpt_layers.reset();
    best = fastest(request, model, profile);
    if (best) assumed.emplace_back("recomputation that fits, because the published does not");
  }
  if (best) {
    assumed.push_back(
        fmt::format("what is not published of the layout as {} runs it fastest", profile.stack.id));
  }
  return best;
}

namespace {

using profiles::Production;
using profiles::WholeRun;

ScoredWholeRun scored(const WholeRun& run, const Production& production, IdealHoursOf& ideal_of) {
  ScoredWholeRun result;
  result.run = run;
  result.skipped = run.not_scorable;
  if (!result.skipped.empty()) return result;
  result.ideal = ideal_of(run);
  const profiles::ProductionFactor factor =
      profiles::factor_of(production, run.parameters, run.peak_flops, result.ideal.gpu_hours,
                          profiles::step_half_width_of(production, result.ideal.step_half_width,
                                                       result.ideal.added_half_widths));
  result.gpu_hours = result.ideal.gpu_hours * factor.middle;
  result.interval_gpu_hours = {result.gpu_hours * portable_exp(-factor.half_widths[0]),
                               result.gpu_hours * portable_exp(factor.half_widths[1])};
  result.inside = run.gpu_hours >= result.interval_gpu_hours[0] &&
                  run.gpu_hours <= result.interval_gpu_hours[1];
  return result;
}

WholeRunSummary summary_of(const std::vector<ScoredWholeRun>& runs) {
  WholeRunSummary summary;
  std::vector<double> ratios, widths;
  for (const ScoredWholeRun& scored : runs) {
    if (!scored.run.scored()) continue;
    ++summary.n;
    summary.inside += scored.inside;
    ratios.push_back(scored.ratio());
    widths.push_back(scored.interval_gpu_hours[1] / scored.interval_gpu_hours[0]);
  }
  if (summary.n == 0) return summary;
  summary.median_ratio = quantile(ratios, 0.5);
  summary.median_width = quantile(widths, 0.5);
  return summary;
}

}  // namespace

WholeRunScore score_whole_runs(const std::vector<WholeRun>& runs, const Production& production,
                               const WholeRunOptions& options) {
  WholeRunScore result;
  IdealHoursOf ideal_of(production.analytic_mfu, options.overrides);
  for (const WholeRun& run : runs) {
    result.runs.push_back(scored(run, production, ideal_of));
    if (options.progress) options.progress(static_cast<std::int64_t>(result.runs.size()));
  }
  result.summary = summary_of(result.runs);
  return result;
}

}  // namespace shardwright::tuner
