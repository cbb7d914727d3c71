// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/plan.h"

#include <fmt/core.h>

#include "cli/render/words/model_parallel_words.h"
#include "sim/core/layout.h"

namespace shardwright::cli {

std::string checkpoint_words(const Plan& plan) {
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return "nothing recomputed";
  return fmt::format("{} layer{} {}", plan.ckpt_layers, plan.ckpt_layers == 1 ? "" : "s",
                     recompute_name(plan));
}

std::string plan_words(const Plan& plan) {
  const Plan usual;
  // Model-parallel frameworks has one usual strategy.
  const std::string layout = model_parallel_words(plan);
  const bool named = layout.empty() || plan.strategy != Strategy::kDistributedOptimizer;
  std::string text = named ? std::string(name_of(plan.strategy)) : "";
  if (!layout.empty()) text += (named ? ", " : "") + layout;
  if (info_of(plan.strategy).hybrid && plan.shard_group > 0)
    text += fmt::format(" of {}", plan.shard_group);
  text += fmt::format(", {} x {}, {}", plan.micro_batch, plan.grad_accum, checkpoint_words(plan));
  if (plan.document_length() < plan.seq_len)
    text += fmt::format(", documents of {}", plan.packed_length);
  if (plan.buffers != usual.buffers)
    text += fmt::format(", {} buffer{}", plan.buffers, plan.buffers == 1 ? "" : "s");
  if (plan.attention != usual.attention)
    text += fmt::format(", {} attention", name_of(plan.attention));
  if (plan.deterministic) text += ", deterministic";
  if (plan.loss_chunks > 1) text += fmt::format(", loss in {} pieces", plan.loss_chunks);
  if (plan.allocator != usual.allocator)
    text += fmt::format(", {} allocator", name_of(plan.allocator));
  if (plan.param_dtype != usual.param_dtype)
    text += fmt::format(", {} parameters", name_of(plan.param_dtype));
  if (plan.reduce_dtype != usual.reduce_dtype)
    text += fmt::format(", {} reduction", name_of(plan.reduce_dtype));
  if (plan.master_dtype != usual.master_dtype)
    text += fmt::format(", {} master weights", name_of(plan.master_dtype));
  if (plan.moment_dtype != usual.moment_dtype)
    text += fmt::format(", {} moments", name_of(plan.moment_dtype));
  return text;
}

std::string part_of_node_words(const Cluster& cluster, std::int64_t gpus) {
  const std::int64_t node = cluster.gpus_per_node;
  if (gpus <= 1 || gpus >= node || is_rack(node) || cluster.gpu.is_processor()) return "";
  return fmt::format("a part of one node: {} of its {} GPUs, with nothing beside them", gpus, node);
}

std::string peak_type_words(const Gpu& gpu, const Plan& plan) {
  if (gpu.is_processor()) return "fp32";
  return fmt::format("dense {}", name_of(plan.numerics.precision));
}

}  // namespace shardwright::cli
