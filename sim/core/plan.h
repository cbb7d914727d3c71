// SPDX-License-Identifier: Apache-2.0
// How it is trained: the strategy and every knob that the tuner may turn. Model, cluster, stack and
// plan together determine a Schedule (sim/core/schedule.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/words.h"
#include "sim/core/parallelism.h"
#include "sim/core/strategy.h"
#include "sim/core/units.h"

namespace shardwright {

struct Model;

SHARDWRIGHT_WORDS(DType, kBf16, "fp32", "bf16");

enum class AttentionKind : std::uint8_t { kFlash, kEager };
SHARDWRIGHT_WORDS(AttentionKind, kEager, "flash", "eager");

/// What a checkpointed layer recomputes in backward.
enum class Recompute : std::uint8_t {
  kNone,
  kFull,         // keeps only the layer's input
  kSelectiveOp,  // torchtitan's per-operator policy: keeps attention outputs and every second
                 // GEMM
  kPieces        // the pieces named in Plan::pieces
};

/// Bits of Plan::pieces: which parts of a layer are recomputed under Recompute::kPieces.
enum RecomputePiece : std::uint16_t {
  kPieceNorm = 1,
  kPieceSwiglu = 2,
  kPieceFfn = 4,
  kPieceAttention = 8,
  kPieceBlock = 16,
  // Megatron's modules besides those that are pieces under another name (layernorm is norm, mlp is
  // ffn); sim/program/unit_program.h says what each makes again.
  kPieceCoreAttention = 32,
  kPieceMlaUpProjection = 64,
  kPieceMoeActivation = 128,
  kPieceMoe = 256,
  kPieceSharedExperts = 512
};
inline constexpr std::uint16_t kMegatronPieces = kPieceCoreAttention | kPieceMlaUpProjection |
                                                 kPieceMoeActivation | kPieceMoe |
                                                 kPieceSharedExperts;

enum class Offload : std::uint8_t { kNone, kOptimizer, kActivations };

/// How PyTorch's caching allocator grows: in segments of its own sizes, or page by page.
enum class AllocatorKind : std::uint8_t { kStack, kNative, kExpandable };
SHARDWRIGHT_WORDS(AllocatorKind, kExpandable, "stack", "native", "expandable");

struct Plan {
  Strategy strategy = Strategy::kYafsdp;
  std::int64_t gpus = 1;
  std::int64_t shard_group =
      0;  // ranks that share one copy of the parameters; 0: all (hsdp: one node)
  std::int64_t seq_len = 2048;
  /// Mean length of the documents that a sequence is packed of, which attend to themselves alone;
  /// 0: a sequence is one document.
  std::int64_t packed_length = 0;
  std::int64_t micro_batch = 1;  // sequences per rank and micro-batch
  std::int64_t grad_accum = 1;
  std::int64_t ckpt_layers = 0;  // number of layers to which `recompute` applies
  std::int64_t ckpt_stride = 1;  // 1: the first ckpt_layers; n: every n-th layer
  Recompute recompute = Recompute::kFull;
  std::uint16_t pieces = 0;
  DType param_dtype = DType::kBf16;   // compute and gather
  DType reduce_dtype = DType::kFp32;  // gradient reduction
  DType master_dtype = DType::kFp32;  // sharded parameters that the optimizer updates
  DType moment_dtype = DType::kFp32;
  int buffers = 2;   // rotating gather buffers (yafsdp, native)
  int prefetch = 1;  // units gathered ahead into them, at most buffers - 1
  AttentionKind attention = AttentionKind::kFlash;
  bool deterministic = false;  // GPUs add in one order, too, where that takes longer (native)
  /// Equal parts into which what tensor ranks add up is cut, each of them making whole ones; a sum
  /// has the same bits for every tp that divides this. 0: tp of them (native).
  std::int64_t sum_features = 0;
  /// 2: the gradients of a tied table are summed for each of its uses, as embedding and as head,
  /// and then added; whole on every rank, as all gradients beside stages of a pipeline. 1:
  /// micro-batch by micro-batch. 0: as the layout needs it (native).
  std::int64_t sum_uses = 0;
  Offload offload = Offload::kNone;
  std::int64_t loss_chunks = 0;  // pieces in which logits and loss exist; 0: as the stack does it
  AllocatorKind allocator = AllocatorKind::kStack;  // kStack: as the stack sets it
  std::int64_t offload_layers = 0;                  // whose activations are offloaded
  Parallelism parallel;
  Numerics numerics;
  std::string stack = "native";

  bool operator==(const Plan&) const = default;

  /// Units whose gathered parameters may be on a rank at once: the one that computes and those
  /// gathered ahead. Less than `buffers` where less is to be gathered ahead.
  int gather_window() const { return prefetch < buffers - 1 ? prefetch + 1 : buffers; }

  /// Tokens that attend to one another.
  std::int64_t document_length() const {
    return packed_length > 0 && packed_length < seq_len ? packed_length : seq_len;
  }
  std::int64_t feature_parts() const { return sum_features > 0 ? sum_features : parallel.tp; }
  std::int64_t use_parts() const { return sum_uses > 0 ? sum_uses : parallel.pp > 1 ? 2 : 1; }

  bool checkpointed(std::int64_t layer) const {
    if (recompute == Recompute::kNone) return false;
    if (ckpt_stride == 1) return layer < ckpt_layers;
    return layer % ckpt_stride == 0 && layer / ckpt_stride < ckpt_layers;
  }
};

std::string offload_name(const Plan& plan);    // "none", "optimizer", "activations:4"
std::string recompute_name(const Plan& plan);  // "none", "full", "selective-op", "norm,swiglu"

/// "native" or "expandable": what may be chosen.
std::optional<AllocatorKind> allocator_from(std::string_view name);
/// Sets plan.offload and plan.offload_layers; false for a word that is none.
bool set_offload(Plan& plan, std::string_view words);
/// Sets plan.recompute and plan.pieces from a command-line word; throws Error naming the word.
void set_recompute(Plan& plan, std::string_view words);

/// Throws InvalidPlan where the strategy does not shard `ranks` that hold the same part of the
/// model in groups of that size.
void check_shard_group(const Plan& plan, std::int64_t ranks);
/// Ranks over which parameters, gradients and optimizer state are sharded (1: replicated).
std::int64_t resolved_shard_group(const Plan& plan, std::int64_t gpus_per_node);

/// Tokens that all GPUs train on in an optimizer step.
double tokens_per_step(const Plan& plan);

/// Throws Error naming the first knob that is out of range or contradicts another one.
void check_plan(const Plan& plan, std::int64_t model_layers, std::int64_t gpus_per_node);

/// As above, and what plan and model decide together: the sequence must fit learned positions, and
/// byte counts of the step must stay within int64.
void check_plan(const Plan& plan, const Model& model, std::int64_t gpus_per_node);

}  // namespace shardwright
