// SPDX-License-Identifier: Apache-2.0
// The values of what may vary, as far as they do not depend on one another (space.cc combines
// them), and what tells plans apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "tuner/search/request.h"

namespace shardwright::tuner {

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
/// Those of other plans: what the framework does beside tensor and pipeline parallelism.

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
