// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/stage_memory.h"

#include <algorithm>
#include <numeric>

#include "sim/core/strategy.h"
#include "sim/memory/optimizer_state.h"
#include "sim/memory/unit_activations.h"
#include "sim/program/adapters.h"
#include "sim/program/low_precision.h"
#include "sim/program/real.h"
#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {
namespace {

class StageWalk {
 public:
  struct Peak {
    double activations = 0, loss = 0;
    double gradient_buffers = 0;
    double all() const { return activations + loss + gradient_buffers; }
  };

  StageWalk(const UnitActivations& units, const Plan& plan)
      : units_(units),
        offloaded_(plan.offload == Offload::kActivations ? plan.offload_layers : 0) {}

  /// `gradient_buffers`: of sharded parameters, there while a layer's backward runs.
  Peak peak(const PipelineShape& shape, const std::vector<ChunkContent>& parts, std::int32_t stage,
            double gradient_buffers) const {
    std::vector<ActivationLevels> chunks;
    for (std::int32_t c = 0; c < shape.chunks; ++c)
      chunks.push_back(units_.of(of_chunk(parts, shape, {stage, c}), offloaded_));
    Peak peak;
    ActivationBytes live;
    const auto reach = [&](const ActivationBytes& beyond, double buffers) {
      const Peak here{f(live.activations + beyond.activations), f(live.loss + beyond.loss),
                      buffers};
      if (here.all() > peak.all()) peak = here;
    };
    for (const Action& action : stage_actions(shape, stage)) {
      const ActivationLevels& chunk = chunks[static_cast<std::size_t>(action.chunk)];
      if (action.kind == PassKind::kForward) {
        reach(chunk.forward, 0);
        add(live, chunk.kept, 1);
      }
      if (makes_input_gradient(action.kind)) {
        add(live, chunk.kept, -1);
        const bool defers = !makes_weight_gradient(action.kind);
        reach(defers ? chunk.backward_input : chunk.backward, gradient_buffers);
        if (defers) add(live, chunk.deferred, 1);
      } else if (makes_weight_gradient(action.kind)) {
        add(live, chunk.deferred, -1);
      }
    }
    return peak;
  }

 private:
  static void add(ActivationBytes& to, const ActivationBytes& more, Bytes sign) {
    to.activations += sign * more.activations;
    to.loss += sign * more.loss;
  }

  const UnitActivations& units_;
  std::int64_t offloaded_;
};

/// In-flight passes are as many with fewer micro-batches, once warm-up is over.
PipelineShape shortened(PipelineShape shape) {
  const std::int32_t most = 4 * shape.stages;
  if (shape.micro_batches > most) shape.micro_batches = most;
  return shape;
}

/// Frozen weights once, in the compute type or as they are quantized; state of the adapters alone.
void add_adapter_states(StageMemory& memory, const ChunkParameters& held, double adapters,
                        double largest_layer, const Model& model, const Plan& plan,
                        const Stack& stack, const Gpu& gpu, const Layout& layout) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  const double ranks = f(layout.group(CommGroup::kShard).size);
  const double model_parallel = strategy.shards == Sharded::kNothing ? 1 : ranks;
  const bool quantized = plan.numerics.quantize != Quantize::kNone;
  const double each =
      quantized ? quantized_weight_bytes(plan.numerics.quantize) : weight_bytes(plan, stack, gpu);
  const double frozen = 2 * (held.embedding + held.head) + each * (held.layers + held.experts);
  if (quantized) memory.of(MemoryCategory::kWorkspace) += 2 * largest_matrix(model, plan);
  memory.of(MemoryCategory::kMaster) = f(bytes_of(plan.master_dtype)) * adapters / model_parallel;
  memory.of(MemoryCategory::kOptimizer) = moment_bytes(plan) * adapters / model_parallel;
  if (strategy.shards != Sharded::kParameters) {
    memory.of(MemoryCategory::kParameters) = frozen + 2 * adapters;
    memory.of(MemoryCategory::kGradients) = gradient_bytes(plan, stack) * adapters;
    return;
  }
  const bool gathered = layout.pp > 1 || !strategy.reshards;
  memory.of(MemoryCategory::kParameters) = frozen / ranks;
  memory.of(MemoryCategory::kGradients) = f(bytes_of(plan.reduce_dtype)) * adapters / ranks;
  const double travels = quantized ? each : 2;
  memory.of(MemoryCategory::kGatherBuffers) =
      gathered
          ? travels * (held.layers + held.experts) + 2 * (held.embedding + held.head + adapters)
          : travels * 2 * largest_layer;
}

/// The state is the host's; what is on its way is in two pieces of a layer.
void offload_states(StageMemory& memory, double largest_layer, const Plan& plan,
                    const Layout& layout) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  const double ranks = f(layout.group(CommGroup::kShard).size);
  const double model_parallel = strategy.shards == Sharded::kNothing ? 1 : ranks;
  const double master = f(bytes_of(plan.master_dtype));
  const double state = memory.of(MemoryCategory::kMaster) + memory.of(MemoryCategory::kOptimizer);
  // Sharded parameters are gathered from the compute copy that is left.
  if (strategy.shards == Sharded::kParameters && plan.numerics.lora == 0)
    memory.of(MemoryCategory::kParameters) = 2 / master * memory.of(MemoryCategory::kMaster);
  memory.of(MemoryCategory::kMaster) = memory.of(MemoryCategory::kOptimizer) = 0;
  const double pieces = 2 * (master + moment_bytes(plan)) * largest_layer / model_parallel;
  memory.of(MemoryCategory::kWorkspace) += std::min(state, pieces);
}

void add_states(StageMemory& memory, const ChunkParameters& held, double largest_layer,
                const Plan& plan, const Stack& stack, const Gpu& gpu, const Layout& layout) {
  const double parameters = held.total();
  const StrategyInfo& strategy = info_of(plan.strategy);
  const double ranks = f(layout.group(CommGroup::kShard).size);
  const double master = f(bytes_of(plan.master_dtype)), moments = moment_bytes(plan);
  // The state of experts is divided by the few ranks that hold the same.
  const double expert_ranks = f(layout.group(sharded_over(ModelUnit::kExperts)).size);
  if (strategy.shards == Sharded::kParameters) {
    const bool gathered = layout.pp > 1 || !strategy.reshards;
    const double owned = held.dense() / ranks + held.experts / expert_ranks;
    memory.of(MemoryCategory::kMaster) = master * owned;
    memory.of(MemoryCategory::kGradients) = f(bytes_of(plan.reduce_dtype)) * owned;
    memory.of(MemoryCategory::kOptimizer) = moments * owned;
    const double each = plan.numerics.fp8_params ? weight_bytes(plan, stack, gpu) : 2;
    memory.of(MemoryCategory::kGatherBuffers) = each * (gathered ? parameters : 2 * largest_layer);
    memory.of(MemoryCategory::kGradientBuffers) =
        (2 + f(bytes_of(plan.reduce_dtype))) * largest_layer;
    return;
  }
  const double model_parallel = strategy.shards == Sharded::kNothing ? 1 : ranks;
  const double expert_divided = strategy.shards == Sharded::kNothing ? 1 : expert_ranks;
  const double owned = held.dense() / model_parallel + held.experts / expert_divided;
  memory.of(MemoryCategory::kParameters) =
      2 * (held.embedding + held.head) +
      weight_bytes(plan, stack, gpu) * (held.layers + held.experts);
  memory.of(MemoryCategory::kGradients) = kept_gradient_bytes(plan, stack) * parameters;
  const GradientSoftware& gradients = stack.parallel.gradients;
  if (strategy.shards != Sharded::kNothing && plan.reduce_dtype != DType::kFp32)
    memory.of(MemoryCategory::kWorkspace) +=
        gradients.flattened_bytes * owned + gradients.bucket_bytes;
  // Masters of the type of the weights are the weights.
  memory.of(MemoryCategory::kMaster) = plan.master_dtype == plan.param_dtype ? 0 : master * owned;
  memory.of(MemoryCategory::kOptimizer) = moments * owned;
}

}  // namespace

ChunkParameters chunk_parameters(const Model& model, const ModelUnits& units,
                                 const ChunkContent& chunk) {
  const auto held = [&](ModelUnit unit, std::int64_t times) {
    return f(times) * f(units.elements(unit));
  };
  // A module of multi-token prediction is a layer like the last one.
  const std::int64_t predictions = model.is_moe() ? chunk.extra_predictions : 0;
  const std::int64_t moe_layers = chunk.expert_layers + predictions;
  ChunkParameters result;
  result.layers = held(ModelUnit::kDenseLayer, chunk.layers - chunk.expert_layers) +
                  held(ModelUnit::kMoeLayer, moe_layers) +
                  f(predictions) * f(units.prediction_projection());
  result.experts = held(ModelUnit::kExperts, moe_layers);
  if (chunk.embedding) result.embedding = f(units.elements(ModelUnit::kEmbedding));
  if (chunk.head) {
    // A tied head is the embedding itself, or a copy of it on another stage.
    const bool copied = model.tied_head && !chunk.embedding;
    result.head = held(ModelUnit::kHead, 1) + (copied ? f(units.vocabulary()) : 0);
  }
  return result;
}

double offloaded_bytes(const Model& model, const Plan& plan, const Stack& stack,
                       const ChunkContent& chunk) {
  const UnitActivations units(model, plan, stack);
  return f(units.of(chunk).kept.all() - units.of(chunk, plan.offload_layers).kept.all());
}

int communicators(const Layout& layout) {
  int count = 1;  // the world's
  for (const CommGroup group : {CommGroup::kTensor, CommGroup::kContext, CommGroup::kPipeline,
                                CommGroup::kExpert, CommGroup::kData}) {
    if (layout.group(group).size > 1) ++count;
  }
  return count;
}

std::vector<StageMemory> stage_memory(const Model& model, const Plan& plan,
                                      const profiles::Profile& profile, const Layout& layout,
                                      const std::vector<ChunkContent>& parts,
                                      const UnitActivations& activations) {
  const Stack& stack = profile.stack;
  const StageWalk walk(activations, plan);
  const PipelineShape shape = shortened(pipeline_shape(plan));
  const ModelUnits units(model, plan.parallel);
  const RankShape s = rank_shape(model, plan);
  const double message = f(bytes_of(plan.param_dtype)) * f(s.sharded_tokens) * f(s.hidden);
  std::vector<StageMemory> result;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    StageMemory memory;
    ChunkParameters all;
    double largest = 0, adapters = 0;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkContent& content = of_chunk(parts, shape, {stage, c});
      const ChunkParameters held = chunk_parameters(model, units, content);
      all.layers += held.layers;
      adapters += adapter_parameters(model, plan, stack, content.layers);
      all.embedding += held.embedding;
      all.head += held.head;
      all.experts += held.experts;
      if (content.layers > 0) largest = (held.layers + held.experts) / f(content.layers);
      largest = std::max({largest, held.embedding + held.head});
    }
    const Gpu& gpu = profile.cluster.gpu;
    if (plan.numerics.lora > 0) {
      add_adapter_states(memory, all, adapters, largest, model, plan, stack, gpu, layout);
    } else {
      add_states(memory, all, largest, plan, stack, gpu, layout);
    }
    if (plan.offload == Offload::kOptimizer) offload_states(memory, largest, plan, layout);
    const StageWalk::Peak peak =
        walk.peak(shape, parts, stage, memory.of(MemoryCategory::kGradientBuffers));
    memory.of(MemoryCategory::kGradientBuffers) = peak.gradient_buffers;
    memory.of(MemoryCategory::kActivations) += peak.activations;
    memory.of(MemoryCategory::kLoss) += peak.loss;
    if (shape.stages > 1) {
      const double messages = shape.interleaves() ? shape.stages : 2;
      memory.of(MemoryCategory::kWorkspace) += messages * message;
    }
    memory.allocated_bytes =
        std::accumulate(memory.breakdown_bytes.begin(), memory.breakdown_bytes.end(), 0.0);
    memory.reserved_bytes =
        memory.allocated_bytes + stack.parallel.fragmentation * (peak.activations + peak.loss);
    result.push_back(memory);
  }
  return result;
}

}  // namespace shardwright::sim
