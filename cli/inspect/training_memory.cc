// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect/training_memory.h"

#include <fmt/core.h>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "sim/core/base/error.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

Bytes of(const sim::MemoryPrediction& memory, MemoryCategory category) {
  return memory.breakdown_bytes[static_cast<std::size_t>(category)];
}

}  // namespace

std::optional<TrainingMemory> training_memory(const Model& model, std::int64_t seq_len) {
  // Bytes are the model's and the schedule's; of the cluster only the GPU's alignment enters.
  constexpr const char* kAnyCluster = "dgx-h100";
  Plan plan;
  plan.strategy = Strategy::kSingle;
  plan.seq_len = seq_len;
  try {
    sim::Predictor predictor(model, profiles::load_profile(kAnyCluster, plan.stack));
    const auto memory_with = [&](std::int64_t checkpointed) {
      plan.ckpt_layers = checkpointed;
      plan.recompute = checkpointed > 0 ? Recompute::kFull : Recompute::kNone;
      return predictor.predict(plan).memory;
    };
    const sim::MemoryPrediction kept = memory_with(0);
    TrainingMemory result;
    result.rule_of_thumb_bytes =
        kRuleOfThumbBytes * static_cast<double>(count_parameters(model).total(model.layers));
    result.state_bytes = of(kept, MemoryCategory::kParameters) + of(kept, MemoryCategory::kMaster) +
                         of(kept, MemoryCategory::kGradients) +
                         of(kept, MemoryCategory::kOptimizer);
    result.peak_bytes = kept.peak_allocated_bytes;
    result.recomputed_peak_bytes = memory_with(model.layers).peak_allocated_bytes;
    return result;
  } catch (const InvalidPlan&) {
    return std::nullopt;  // longer than its window, or a family that needs more than one device
  }
}

std::string training_memory_table(const TrainingMemory& memory, std::int64_t seq_len,
                                  std::int64_t parameters, const Terminal& out) {
  const auto each = [parameters](double bytes) {
    return fmt::format("{:.1f} bytes a parameter", bytes / static_cast<double>(parameters));
  };
  Table table({{"training, unsharded"}, {""}, {""}});
  table.add_row(
      {"rule of thumb", bytes(memory.rule_of_thumb_bytes), each(memory.rule_of_thumb_bytes)});
  table.add_row({"weights, gradients, Adam", bytes(memory.state_bytes),
                 each(static_cast<double>(memory.state_bytes)) + ", exact"});
  table.add_row({fmt::format("  and a sequence of {}", seq_len), bytes(memory.peak_bytes),
                 each(static_cast<double>(memory.peak_bytes))});
  table.add_row({"  every layer recomputed", bytes(memory.recomputed_peak_bytes),
                 each(static_cast<double>(memory.recomputed_peak_bytes))});
  return table.render(out);
}

}  // namespace shardwright::cli
