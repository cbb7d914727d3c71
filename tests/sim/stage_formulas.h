// SPDX-License-Identifier: Apache-2.0
// What a stage of Megatron's holds by formulas, as papers and frameworks' documents count it: a
// second way to the bytes that follow from schedules (sim/memory/stage_memory.h); and what tests
// ask about these.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/local_shape.h"
#include "sim/core/strategy.h"
#include "sim/memory/stage_memory.h"
#include "sim/program/adapters.h"
#include "sim/program/low_precision.h"
#include "sim/program/optimizer_state.h"
#include "sim/program/program_writer.h"
#include "sim/program/stages.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

/// By stage; of a plan without a pipeline one.
inline std::vector<MemoryLevel> levels_of_stages(const Model& model,
                                                 const profiles::Profile& profile,
                                                 const Plan& plan) {
  ProgramCache cache(model, profile.stack, profile.cluster.gpu);
  const std::vector<ChunkContent> parts = partition_layers(model, plan, profile.stack);
  return StageMemory(model, profile, cache).levels(plan, parts);
}

/// What a layer keeps of a micro-batch from its forward to its backward pass.
inline Bytes kept_by_layer(const Model& model, const Plan& plan, const Stack& stack,
                           bool recomputed = false, bool experts = false) {
  const LayerKind kind = {Mixer::kAttention, experts ? Channels::kExperts : Channels::kMlp};
  const UnitProgram unit = ProgramWriter(model, plan, stack).layer(recomputed, kind);
  Bytes kept = 0;
  for (const MemoryAction& action :
       lifetimes(unit.forward, unit.tensors, TensorSet(), unit.kept, false))
    kept += action.acquire ? action.bytes : -action.bytes;
  return kept;
}

namespace formulas {

/// Parameters of a rank, by how they are reduced.
struct ChunkParameters {
  double layers = 0, embedding = 0, head = 0;
  double experts = 0;  // routed ones, summed over ranks that hold the same
  double dense() const { return layers + embedding + head; }
  double total() const { return dense() + experts; }
};

inline ChunkParameters chunk_parameters(const Model& model, const ModelUnits& units,
                                        const ChunkContent& chunk) {
  const auto held = [&](ModelUnit unit, std::int64_t times) {
    return f(times) * f(units.elements(unit));
  };
  const std::int64_t predictions = model.is_moe() ? chunk.extra_predictions : 0;
  const std::int64_t moe_layers = chunk.expert_layers + predictions;
  ChunkParameters result;
  result.layers = held(ModelUnit::kDenseLayer, chunk.layers - chunk.expert_layers) +
                  held(ModelUnit::kMoeLayer, moe_layers) +
                  f(predictions) * f(units.prediction_projection());
  result.experts = held(ModelUnit::kExperts, moe_layers);
  if (chunk.embedding) result.embedding = f(units.elements(ModelUnit::kEmbedding));
  if (chunk.head) {
    const bool copied = model.tied_head && !chunk.embedding;
    result.head = held(ModelUnit::kHead, 1) + (copied ? f(units.vocabulary()) : 0);
  }
  return result;
}

/// Parameters, gradients, master and optimizer state, by category.
inline std::array<double, kMemoryCategories> states(const Model& model, const Plan& plan,
                                                    const profiles::Profile& profile,
                                                    std::int32_t stage) {
  const Stack& stack = profile.stack;
  const Layout layout = layout_of(plan, profile.cluster);
  const PipelineShape shape = pipeline_shape(plan);
  const std::vector<ChunkContent> parts = partition_layers(model, plan, stack);
  const ModelUnits units(model, plan.parallel);
  ChunkParameters held;
  double adapters = 0, expert_adapters = 0;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    const ChunkContent& content = of_chunk(parts, shape, {stage, c});
    const ChunkParameters more = chunk_parameters(model, units, content);
    held.layers += more.layers;
    held.embedding += more.embedding;
    held.head += more.head;
    held.experts += more.experts;
    for (std::int64_t i = 0; i < content.layers; ++i) {
      const AdapterElements of =
          adapter_elements(model, plan, stack, model.kind(content.first_layer + i));
      adapters += f(of.dense);
      expert_adapters += f(of.experts);
    }
  }
  const bool divides = info_of(plan.strategy).shards != Sharded::kNothing;
  const double ranks = divides ? f(layout.group(CommGroup::kShard).size) : 1;
  const double expert_ranks = divides ? f(layout.group(CommGroup::kExpertData).size) : 1;
  const bool trains_all = plan.numerics.lora == 0;
  const double trained = trains_all ? held.total() : adapters + expert_adapters;
  const double owned = trains_all ? held.dense() / ranks + held.experts / expert_ranks
                                  : adapters / ranks + expert_adapters / expert_ranks;
  const double each = plan.numerics.quantize != Quantize::kNone
                          ? quantized_weight_bytes(plan.numerics.quantize)
                          : weight_bytes(plan, stack, profile.cluster.gpu);
  std::array<double, kMemoryCategories> bytes{};
  const auto of = [&](MemoryCategory category) -> double& {
    return bytes[static_cast<std::size_t>(category)];
  };
  of(MemoryCategory::kParameters) = 2 * (held.embedding + held.head) +
                                    each * (held.layers + held.experts) +
                                    (trains_all ? 0 : 2 * (adapters + expert_adapters));
  of(MemoryCategory::kGradients) = kept_gradient_bytes(plan, stack) * trained;
  if (plan.offload == Offload::kOptimizer) return bytes;
  of(MemoryCategory::kMaster) = f(bytes_of(plan.master_dtype)) * owned;
  of(MemoryCategory::kOptimizer) = moment_bytes(plan) * owned;
  return bytes;
}

}  // namespace formulas
}  // namespace shardwright::sim
