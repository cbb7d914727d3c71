// SPDX-License-Identifier: Apache-2.0
// Every plan that a request leaves open on one framework.
//
// A space is a list of plans that recompute nothing, one for each combination of what may vary:
// sizes of tensor, pipeline, context and expert parallelism (data parallelism alone is the point
// where all of them are 1), settings of the framework, arithmetic, strategy, batch, attention,
// pieces of the loss, gather buffers. With each of them goes how much is recomputed: what (a
// policy) and in how many layers (steps). Combinations that execute the same are counted once: what
// a plan ignores is not varied for it, sizes that cut nothing evenly or only rename others are not
// tried. What changes the arithmetic varies only where the request allows it. Tensor ranks stay
// within NVLink; schedules that split backward are tried where --pp-schedule names them, because no
// published release of the frameworks that ship has them, and on this project's executor, whose
// plans are those that it runs (sim/core/executed_plan.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/features.h"
#include "tuner/search/request.h"

namespace shardwright::tuner {

struct Space {
  Plan base;                                  // what does not vary
  std::vector<Plan> plans;                    // nothing recomputed; the plainest first
  std::vector<Recomputation> recomputations;  // besides none
  bool recomputes_nothing = true;             // whether `plans` themselves are in the space
  std::optional<std::int64_t> ckpt_layers;    // held fixed
  std::int64_t layers = 0;                    // that can be recomputed
  bool pieces_of_all_layers = false;          // recomputed pieces are those of every layer
  bool fills_buffers = true;                  // prefetch is not fixed: as far ahead as they hold
  std::vector<Strategy> strategies;           // of data parallelism alone
  /// Sequences of a step where the request says nothing and replicas share them; 0 elsewhere.
  std::int64_t usual_global_batch = 0;
  bool always_shares_batch = false;  // that batch is of all plans

  /// How many numbers of layers there are to recompute. With stages, every chunk has its share.
  std::int64_t steps(const Plan& plan, const Recomputation& recomputation) const;
  /// `plan` with `step` of them, 1 to steps().
  Plan at(const Plan& plan, const Recomputation& recomputation, std::int64_t step) const;
  std::int64_t size() const;
  /// Whether the batch of this plan is the usual one, because nobody gave any.
  bool assumes_batch(const Plan& plan) const;
};

/// Whether ranks have nothing but data in common: dense layers, sharded without buckets, and
/// nothing else asked for. Every way to shard and to compute is tried then.
bool shares_data_alone(Features asked, const Model& model, const Stack& stack);

/// Of the loss, where the search considers pieces at all: with this many the logits no longer
/// count.
inline constexpr std::int64_t kLossChunks = 8;

/// Throws Error when what is held fixed contradicts itself, the model, the cluster or the
/// framework, or when the space holds no plan that makes sense.
Space space_of(const Request& request, const Model& model, const profiles::Profile& profile);

// The values of what may vary, as far as they do not depend on one another (the space combines
// them), and what tells plans apart.

struct Batch {
  std::int64_t micro_batch = 1, grad_accum = 1;
};

/// Types that change the arithmetic.
struct Arithmetic {
  DType reduce_dtype = DType::kFp32, master_dtype = DType::kFp32, moment_dtype = DType::kFp32;
};

/// Divisors of `whole`, smallest first; only `fixed`, where it is given.
std::vector<std::int64_t> divisors(std::int64_t whole, std::optional<std::int64_t> fixed = {});

/// The strategy whose schedule `strategy` has on this stack: itself, or the one that stands for
/// several that the stack executes alike.
Strategy executed_as(Strategy strategy, const Stack& stack);

/// Whether the number of rotating gather buffers changes anything.
bool uses_buffers(Strategy strategy, const Stack& stack);

/// What layers of this model may recompute under the framework, each different from the others.
std::vector<Recomputation> recomputations_of(const Model& model, const Plan& base,
                                             const Stack& stack);

/// How many knobs change the arithmetic of the fp32 defaults.
int arithmetic_changes(const Plan& plan);

/// Strategies of ranks that share nothing but data.
std::vector<Strategy> strategies_of(const Request& request, const Stack& stack);

std::vector<std::int64_t> shard_groups_of(std::int64_t gpus, std::int64_t gpus_per_node);

/// Precisions and optimizers that the request leaves open and allows, the plainest first; what the
/// GPU lacks is left out.
std::vector<Numerics> numerics_of(const Request& request, const Model& model,
                                  const profiles::Profile& profile, const Plan& base);
std::vector<Arithmetic> arithmetics_of(const Request& request);

/// Settings of the framework: those of the request and, where it allows others, every combination
/// of what it leaves open, the usual ones first.
std::vector<GivenParallelism> settings_of(const Request& request, const Model& model,
                                          const Stack& stack);

/// The sequences of one rank, or of one of `replicas`, in an optimizer step, cut into micro-batches
/// in every way. `sequences` are the step's; 0: micro-batch and accumulation say.
std::vector<Batch> batches_of_rank(const Request& request);
std::vector<Batch> batches_of_replicas(const Request& request, std::int64_t sequences,
                                       std::int64_t replicas);
/// Why ranks that share nothing but data have no batch.
std::string batch_refusal(const Request& request);

/// Sequences of a step that somebody would take who is free to choose (20 tokens a parameter).
std::int64_t usual_batch(const Request& request, const Model& model);

/// Sequences of a step below the critical batch of `critical_tokens`, so that every power of two of
/// replicas on these GPUs shares them.
std::int64_t shared_batch(double critical_tokens, std::int64_t seq_len, std::int64_t gpus);

}  // namespace shardwright::tuner
