// SPDX-License-Identifier: Apache-2.0
// What a search is asked: the options that are held fixed, and what it may change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/features.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/plan_knobs.h"
#include "sim/core/units.h"

namespace shardwright::tuner {

/// What is held fixed. A knob that is not given is searched.
struct Request {
  std::int64_t gpus = 8;
  std::int64_t seq_len = 2048;
  std::int64_t packed_length = 0;            // of the plan
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
  GivenParallelism parallel;
  std::vector<Precision> allowed_precisions;
  std::vector<Optimizer> allowed_optimizers;
  bool allow_software = false;  // settings of the framework beyond its usual ones
  std::int64_t offload_layers = 0;
  bool coarse = false;  // fewer values of each size: enough to compare clusters
  DType param_dtype = DType::kBf16;
  Offload offload = Offload::kNone;
  std::int64_t ckpt_stride = 1;
  bool deterministic = false;
  std::optional<std::int64_t> adapters_seq_len;  // usual where none was given and adapters would do
  std::string stack;                             // as plans are to name it; empty: by its id
};

/// Every knob that was given, held fixed; sequences as long as usual for the model unless given.
/// The number of GPUs, the global batch and the stack are left to the caller.
Request request_holding(const GivenKnobs& knobs, const Model& model);

/// What the request holds fixed that asks for more than sharding.
Features features_of(const Request& request);

/// Whether it holds something of sharding fixed that makes no difference beside tensor, pipeline or
/// context parallelism.
bool holds_sharding(const Request& request);

/// The same question on ranks that share nothing but data: tp, pp, cp and ep are 1.
Request sharing_data_alone(Request request);

// What "best" means. Every objective is a score to make small, known exactly once a plan is
// predicted in full and bounded from below by the closed form.

enum class Objective {
  kTime,     // seconds per token
  kCost,     // dollars per token; GPU seconds per token where the price is unknown
  kHeadroom  // bytes of GPU memory in use
};

std::string_view name_of(Objective objective);
std::vector<std::string> objective_names();
std::optional<Objective> objective_from(std::string_view name);

/// The largest cluster that anything is asked about on its own.
inline constexpr std::int64_t kMostGpus = 16384;

/// `step_s` and `total_bytes` may be lower bounds; the score then is one, too.
double score_of(Objective objective, const Plan& plan, double step_s, Bytes total_bytes,
                double usd_per_gpu_hour);

}  // namespace shardwright::tuner
