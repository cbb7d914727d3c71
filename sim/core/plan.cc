// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"
#include "sim/core/features.h"
#include "sim/core/layout.h"
#include "sim/core/model.h"
#include "sim/core/units.h"

namespace shardwright {
namespace {

constexpr auto kRecomputeNames =
    words_up_to<Recompute::kSelectiveOp>("none", "full", "selective-op");
constexpr std::string_view kActivationsOf = "activations:";

struct PieceName {
  RecomputePiece piece;
  std::string_view name;
};
constexpr std::array<PieceName, 12> kPieceNames = {{{kPieceNorm, "norm"},
                                                    {kPieceSwiglu, "swiglu"},
                                                    {kPieceFfn, "ffn"},
                                                    {kPieceAttention, "attention"},
                                                    {kPieceBlock, "block"},
                                                    {kPieceCoreAttention, "core_attn"},
                                                    {kPieceMlaUpProjection, "mla_up_proj"},
                                                    {kPieceMoeActivation, "moe_act"},
                                                    {kPieceMoe, "moe"},
                                                    {kPieceSharedExperts, "shared_experts"},
                                                    {kPieceNorm, "layernorm"},
                                                    {kPieceFfn, "mlp"}}};

/// "norm,swiglu" or "norm+swiglu", the way published tables write it.
std::vector<std::string> pieces_of(std::string words) {
  std::replace(words.begin(), words.end(), '+', ',');
  return split_commas(words);
}

void check_range(std::string_view knob, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw InvalidPlan(fmt::format("{} is {}, expected {} to {}", knob, value, least, most));
  }
}

void check_ranks(const Plan& plan, std::int64_t gpus_per_node) {
  check_range("gpus", plan.gpus, 1, 1 << 20);
  SHARDWRIGHT_CHECK(gpus_per_node >= 1, "gpus_per_node is {}", gpus_per_node);
  const bool rack = is_rack(gpus_per_node);
  const std::int64_t unit = rack ? kGpusPerTray : gpus_per_node;
  if (plan.gpus > unit && plan.gpus % unit != 0 && plan.gpus != gpus_per_node) {
    const std::int64_t below = plan.gpus / unit * unit;
    throw InvalidPlan(
        fmt::format("gpus is {}, expected a multiple of the {} GPUs of a {}: {} or {}", plan.gpus,
                    unit, rack ? "tray" : "node", below, below + unit));
  }
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.one_rank && plan.gpus != 1) {
    throw InvalidPlan(
        fmt::format("gpus is {}, expected 1 for the strategy {}", plan.gpus, strategy.name));
  }
  if (plan.shard_group < 0) {
    throw InvalidPlan(fmt::format("shard_group is {}, expected 0 (the strategy's own) or more",
                                  plan.shard_group));
  }
  if (divides_replica(plan)) return;  // check_parallelism judges its groups
  check_shard_group(plan, plan.gpus);
  const std::int64_t group = resolved_shard_group(plan, gpus_per_node);
  if (plan.gpus % group != 0) {
    throw InvalidPlan(
        fmt::format("shard_group is {}, expected a divisor of the {} GPUs", group, plan.gpus));
  }
  // A group that fills its last node only in part would give its ranks different links.
  if (plan.gpus > gpus_per_node && group % gpus_per_node != 0 && gpus_per_node % group != 0) {
    throw InvalidPlan(
        fmt::format("shard_group is {}, expected a divisor or a multiple of the {} GPUs of a node",
                    group, gpus_per_node));
  }
}

void check_recompute(const Plan& plan, std::int64_t model_layers) {
  check_range("ckpt_stride", plan.ckpt_stride, 1, std::max<std::int64_t>(model_layers, 1));
  const std::int64_t most = ceil_div(model_layers, plan.ckpt_stride);
  if (plan.ckpt_layers < 0 || plan.ckpt_layers > most) {
    const std::string which =
        plan.ckpt_stride == 1 ? ""
                              : fmt::format(" that a ckpt_stride of {} reaches", plan.ckpt_stride);
    throw InvalidPlan(fmt::format("ckpt_layers is {}, expected 0 to {}, the layers of the model{}",
                                  plan.ckpt_layers, most, which));
  }
  if (plan.recompute == Recompute::kNone && plan.ckpt_layers > 0) {
    throw InvalidPlan(
        fmt::format("ckpt_layers is {}, but recompute is none, expected 0 or another recompute",
                    plan.ckpt_layers));
  }
  if (plan.recompute == Recompute::kPieces && plan.pieces == 0) {
    throw InvalidPlan(
        "recompute names no piece, expected some of norm, swiglu, ffn, attention, block");
  }
}

}  // namespace

std::string offload_name(const Plan& plan) {
  switch (plan.offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kActivations:
      break;
  }
  return fmt::format("{}{}", kActivationsOf, plan.offload_layers);
}
bool set_offload(Plan& plan, std::string_view words) {
  std::int64_t layers = 0;
  if (words.starts_with(kActivationsOf)) {
    const std::optional<std::int64_t> count = parse_int64(words.substr(kActivationsOf.size()));
    if (!count || *count < 1) return false;
    plan.offload = Offload::kActivations;
    layers = *count;
  } else if (words == "none" || words == "optimizer") {
    plan.offload = words == "none" ? Offload::kNone : Offload::kOptimizer;
  } else {
    return false;
  }
  plan.offload_layers = layers;
  return true;
}
std::optional<AllocatorKind> allocator_from(std::string_view name) {
  const auto allocator = from_word<AllocatorKind>(name);
  return allocator == AllocatorKind::kStack ? std::nullopt : allocator;
}

std::string recompute_name(const Plan& plan) {
  if (plan.recompute != Recompute::kPieces)
    return std::string(name_in(kRecomputeNames, plan.recompute));
  std::vector<std::string_view> words;
  for (const PieceName& entry : kPieceNames) {
    if ((plan.pieces & entry.piece) != 0 && entry.name != "layernorm" && entry.name != "mlp") {
      words.push_back(entry.name);
    }
  }
  return fmt::format("{}", fmt::join(words, ","));
}

void set_recompute(Plan& plan, std::string_view words) {
  if (const auto whole = value_in<Recompute>(kRecomputeNames, words)) {
    plan.recompute = *whole;
    plan.pieces = 0;
    return;
  }
  std::uint16_t pieces = 0;
  for (const std::string& word : pieces_of(std::string(words))) {
    const auto* entry = std::find_if(kPieceNames.begin(), kPieceNames.end(),
                                     [&](const PieceName& known) { return known.name == word; });
    if (entry == kPieceNames.end()) {
      throw InvalidPlan(fmt::format(
          "recompute is '{}', expected none, full, selective-op, or a list of norm, swiglu, "
          "ffn, attention, block",
          words));
    }
    pieces = static_cast<std::uint16_t>(pieces | entry->piece);
  }
  plan.recompute = Recompute::kPieces;
  plan.pieces = pieces;
}

void check_shard_group(const Plan& plan, std::int64_t ranks) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.replicates() && plan.shard_group > 1) {
    throw InvalidPlan(
        fmt::format("shard_group is {}, but the strategy {} shards nothing, expected 0 or 1",
                    plan.shard_group, name_of(plan.strategy)));
  }
  const bool whole = plan.shard_group == 0 || plan.shard_group == ranks;
  if (!strategy.replicates() && !strategy.hybrid && !strategy.bucketed && !whole) {
    throw InvalidPlan(fmt::format(
        "shard_group is {}, but the strategy {} shards over all {} GPUs{}, expected 0, {} or the "
        "strategy hsdp",
        plan.shard_group, name_of(plan.strategy), ranks,
        ranks == plan.gpus ? "" : " that hold the same part of the model", ranks));
  }
}

std::int64_t resolved_shard_group(const Plan& plan, std::int64_t gpus_per_node) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.replicates()) return 1;
  if (plan.shard_group > 0) return plan.shard_group;
  return strategy.hybrid ? std::min(gpus_per_node, plan.gpus) : plan.gpus;
}

void check_plan(const Plan& plan, std::int64_t model_layers, std::int64_t gpus_per_node) {
  check_ranks(plan, gpus_per_node);
  check_range("seq_len", plan.seq_len, 1, 1 << 24);
  check_range("packed_length", plan.packed_length, 0, plan.seq_len);
  check_range("micro_batch", plan.micro_batch, 1, 1 << 20);
  check_range("grad_accum", plan.grad_accum, 1, 1 << 20);
  check_range("loss_chunks", plan.loss_chunks, 0, 4096);
  check_recompute(plan, model_layers);
  check_range("buffers", plan.buffers, 1, 1024);
  check_range("prefetch", plan.prefetch, 0, 1024);
  if (plan.stack.empty()) throw InvalidPlan("stack is empty, expected the name of a stack");
}

void check_plan(const Plan& plan, const Model& model, std::int64_t gpus_per_node) {
  check_plan(plan, model.layers, gpus_per_node);
  check_parallelism(plan, model);
  if (model.position == Position::kLearned && plan.seq_len > model.max_positions) {
    throw InvalidPlan(
        fmt::format("seq_len is {}, but the model learned {} positions, expected at most {}",
                    plan.seq_len, model.max_positions, model.max_positions));
  }
  // Generous upper bounds of what one step keeps and moves; int64 holds 9.2e18.
  constexpr double kMostBytes = 4e18;
  const auto f = [](std::int64_t value) { return static_cast<double>(value); };
  const double tokens = f(plan.seq_len) * f(plan.micro_batch);
  double per_token =
      f(model.layers) * (64 * f(model.hidden) + 16 * f(model.q_dim()) + 16 * f(model.ffn));
  if (plan.attention == AttentionKind::kEager) {
    per_token += f(model.layers) * 16 * f(model.heads) * f(plan.seq_len);
  }
  per_token += 16 * f(model.vocab);
  if (tokens * per_token > kMostBytes) {
    throw InvalidPlan(
        fmt::format("seq_len {} with micro_batch {} is too much for one step of this model, "
                    "expected fewer tokens",
                    plan.seq_len, plan.micro_batch));
  }
  const double parameters = f(count_parameters(model).total(model.layers));
  if (32 * parameters * f(plan.grad_accum) > kMostBytes) {
    throw InvalidPlan(fmt::format(
        "grad_accum is {}, too much for one step of this model, expected at most {:.0f}",
        plan.grad_accum, kMostBytes / (32 * parameters)));
  }
}

double tokens_per_step(const Plan& plan) {
  const std::int64_t replicas = plan.gpus / plan.parallel.replica();
  return static_cast<double>(plan.seq_len) * static_cast<double>(plan.micro_batch) *
         static_cast<double>(plan.grad_accum) * static_cast<double>(replicas);
}

}  // namespace shardwright
