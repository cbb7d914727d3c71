// SPDX-License-Identifier: Apache-2.0
// Every way to divide a model over GPUs that a request leaves open, for software that does so.
//
// A Division says how many ranks share what, in which order stages work and how a replica cuts its
// part of the batch; all of them use every GPU and train the same sequences. Values that cut
// nothing evenly are not tried, nor are those that only rename another one: virtual stages and a
// schedule belong to pipelines, expert tensor parallelism to experts. Tensor ranks stay within
// NVLink. Schedules that split backward are tried where they are named (--pp-schedule), because no
// published release of the software shipped here has them. How much is recomputed is not part of a
// division: the search finds the least that fits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "tuner/space.h"

namespace shardwright::tuner {

struct ParallelLayout {
  std::int32_t tp = 1, cp = 1, pp = 1, virtual_stages = 1, ep = 1, etp = 1;
  std::int32_t micro_batch = 1, grad_accum = 1;
  std::int16_t strategy = 0, numerics = 0;  // of the space's lists
};

/// Types and optimizer: what changes the arithmetic.
struct Arithmetic {
  DType reduce_dtype = DType::kFp32, master_dtype = DType::kFp32, moment_dtype = DType::kFp32;
  Numerics numerics;
};

struct ModelParallelSpace {
  Plan base;  // what does not vary
  std::vector<Strategy> strategies;
  std::vector<Arithmetic> arithmetics;
  std::vector<ParallelLayout> layouts;
  std::vector<Recomputation> recomputations;  // besides none
  bool recomputes_nothing = true;             // plans without recomputation are in the space
  std::optional<std::int64_t> ckpt_layers;    // held fixed
  std::int64_t layers = 0;                    // of the model
  /// Sequences of a step where the request says nothing; 0 where it does.
  std::int64_t usual_global_batch = 0;

  Plan plan(const ParallelLayout& layout) const;  // nothing recomputed
  /// The same with `step` of the layers of every chunk recomputed, 1 to steps(). Where the number
  /// of layers is fixed, or a policy holds for all layers, there is one step.
  Plan plan(const ParallelLayout& layout, const Recomputation& recomputation,
            std::int64_t step) const;
  std::int64_t steps(const ParallelLayout& layout, const Recomputation& recomputation) const;
  /// Plans in all.
  std::int64_t size() const;
};

/// Whether the request holds something fixed that only model-parallel plans have.
bool asks_for_model_parallel(const Request& request);

/// Whether it holds something fixed that only data parallelism knows.
bool asks_for_data_parallel(const Request& request);

/// Sequences of a step below the critical batch of `critical_tokens`, so that every power of two of
/// replicas on these GPUs shares them.
std::int64_t shared_batch(double critical_tokens, std::int64_t seq_len, std::int64_t gpus);

/// Which plans the software may take.
enum class Extent : std::uint8_t {
  kAll,
  kModelParallel,  // those that divide more than data
};

/// Throws Error when what is held fixed contradicts itself, the model, the cluster or the software.
ModelParallelSpace model_parallel_space(const Request& request, const Model& model,
                                        const profiles::Profile& profile,
                                        Extent extent = Extent::kAll);

}  // namespace shardwright::tuner
