// SPDX-License-Identifier: Apache-2.0
// What may vary: a Request holds some knobs fixed, a Space lists the values of each knob that is
// left, and families_of() enumerates their combinations.
//
// A family is every number of checkpointed layers of one setting of the other knobs, which is what
// the closed form evaluates at once. Combinations that execute the same schedule are counted once:
// a knob that a strategy ignores is not varied for it, strategies that a stack lowers alike are
// tried under one name, and plans without checkpoints belong to recompute "none". Knobs that change
// the arithmetic (bf16 reduction, bf16 master weights, bf16 moments) vary only where the request
// allows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::tuner {

/// What is held fixed. A knob that is not given is searched.
struct Request {
  std::int64_t gpus = 8;
  std::int64_t seq_len = 2048;
  std::optional<std::int64_t> global_batch;  // sequences per optimizer step, of all GPUs
  std::vector<Strategy> strategies;          // empty: all
  std::optional<std::int64_t> shard_group, micro_batch, grad_accum, ckpt_layers;
  std::optional<Recomputation> recompute;
  std::optional<int> buffers, prefetch;
  std::optional<AttentionKind> attention;
  std::optional<std::int64_t> loss_chunks;
  AllocatorKind allocator = AllocatorKind::kStack;
  // Not given: fp32, or both where allowed.
  std::optional<DType> reduce_dtype, master_dtype, moment_dtype;
  bool allow_bf16_reduce = false;
  bool allow_bf16_master = false;
  bool allow_bf16_moments = false;
  // Of model-parallel plans (model_parallel_space.h): sizes and choices that are held fixed, and
  // what of the arithmetic may change.
  GivenParallelism parallel;
  std::vector<Precision> allowed_precisions;
  std::vector<Optimizer> allowed_optimizers;
  bool allow_software = false;  // its settings beyond the usual (software_choice.h)
  std::int64_t offload_layers = 0;
  bool coarse = false;  // fewer values of each size: enough to compare clusters
  DType param_dtype = DType::kBf16;
  Offload offload = Offload::kNone;
  std::int64_t ckpt_stride = 1;
  bool deterministic = false;
  std::string stack;  // as plans are to name it; empty: by its id
};

/// Every knob that was given, held fixed; sequences as long as usual for the model unless given.
/// The number of GPUs, the global batch and the stack are left to the caller.
Request request_holding(const GivenKnobs& knobs, const Model& model);

struct Batch {
  std::int64_t micro_batch = 1, grad_accum = 1;
};

struct Space {
  Plan base;  // what does not vary
  std::vector<Strategy> strategies;
  std::vector<std::int64_t> shard_groups;  // of hsdp
  std::vector<Batch> batches;
  std::vector<DType> reduce_dtypes, master_dtypes, moment_dtypes;
  std::vector<AttentionKind> attentions;
  std::vector<std::int64_t> loss_chunks;
  std::vector<int> buffers;
  bool fills_buffers = true;                  // prefetch is not fixed: as far ahead as they hold
  std::vector<Recomputation> recomputations;  // besides none
  bool recomputes_nothing = true;             // whether plans without checkpoints are in the space
  std::int64_t least_layers = 1, most_layers = 0;  // checkpointed, of plans with checkpoints
};

/// Of the loss, where the search considers pieces at all: with this many the logits no longer
/// count.
inline constexpr std::int64_t kLossChunks = 8;
inline constexpr std::int64_t kLargeVocabulary = 65536;

/// Plans that differ in ckpt_layers only, which runs from `least` to `most`.
struct Family {
  Plan plan;
  std::int64_t least = 0, most = 0;

  std::int64_t size() const { return most - least + 1; }
  Plan at(std::int64_t ckpt_layers) const;
};

/// Throws Error when what is held fixed contradicts itself, the model or the cluster.
Space space_of(const Request& request, const Model& model, const profiles::Profile& profile);

/// Every family of the space, in an order that prefers plain settings where plans are equally fast.
/// Throws Error when the space holds no plan that makes sense.
std::vector<Family> families_of(const Space& space, const Model& model,
                                const profiles::Profile& profile);

/// The strategy whose schedule `strategy` has on this stack: itself, or the one that stands for
/// several that the stack executes alike.
Strategy executed_as(Strategy strategy, const Stack& stack);

/// Whether the number of rotating gather buffers changes anything.
bool uses_buffers(Strategy strategy, const Stack& stack);

/// What layers of this model may recompute under the stack, each different from the others.
std::vector<Recomputation> recomputations_of(const Model& model, const Plan& base,
                                             const Stack& stack);

/// How many knobs change the arithmetic of the fp32 defaults.
int arithmetic_changes(const Plan& plan);

}  // namespace shardwright::tuner
