// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/whole_run_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/words.h"
#include "tuner/advice/scenarios.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {
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
  return std::string(found == words.end() ? otherwise : found->stands_for);
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

}  // namespace shardwright::tuner
