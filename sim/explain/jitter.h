// SPDX-License-Identifier: Apache-2.0
// What a step takes when kernels vary from rank to rank and from run to run (predict --jitter).
#pragma once

#include <optional>

#include "sim/predict.h"

namespace shardwright::sim {

struct Jitter {
  double kernel_spread = 0;  // standard deviation of a kernel's time, as a fraction
  int ranks = 0;             // simulated; the slowest stands for all
  double slowdown = 0;       // of the step, as a fraction
  double iteration_s = 0;    // of the slowest rank
  double waiting_s = 0;      // mean over ranks: in collectives that the last rank has not joined
  double bubble_s = 0;       // of pipelines: what a stage waits longer for others, the mean
  /// Of communication that nothing hides: what waiting for the last rank adds, the mean.
  double exposed_s = 0;
  bool settled = true;  // false: the ranks' joining times had not settled, a lower bound
};

/// For the plan that `predictor` predicted last, see sim/engine/stragglers.h; of a pipeline
/// sim/pipeline/joint_stages.h. `rank_spread` as of RankDraws.
Jitter jitter_of(const Predictor& predictor, const Prediction& prediction, double kernel_spread,
                 std::optional<double> rank_spread = {});

}  // namespace shardwright::sim
