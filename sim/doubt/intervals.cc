// SPDX-License-Identifier: Apache-2.0
#include "sim/doubt/intervals.h"

#include <algorithm>
#include <cmath>

#include "sim/core/portable_math.h"
#include "sim/doubt/conformal.h"
#include "sim/doubt/extrapolation.h"

namespace shardwright::sim {

double published_half_width(Prediction& prediction, const Model& model,
                            const profiles::Profile& profile, const std::string& source) {
  const profiles::Uncertainty& known = profile.uncertainty;
  TimePrediction& time = prediction.time;
  time.novelty =
      novelty_of(known, source, profile.stack.family, profile.cluster.gpu.id, model.name);
  Doubts doubts;
  // Somebody else's cluster: what others have on the same GPU says less than one's own runs.
  doubts.novelty = has_seen_source(known, source)
                       ? time.novelty
                       : std::max(time.novelty, profiles::Novelty::kSourceOnly);
  doubts.guessed = profile.cluster.gpu.is_processor();
  doubts.retries = prediction.memory.allocator_retries > 0;
  doubts.extrapolations = prediction.extrapolated.size();
  if (prediction.other_tie_order_s > 0) {
    doubts.ties_half_width =
        std::abs(portable_log(prediction.other_tie_order_s / time.iteration_s)) / 2;
  }
  return half_width(known, doubts);
}

void set_intervals(Prediction& prediction, const profiles::Profile& profile, double half_width) {
  TimePrediction& time = prediction.time;
  const auto interval = interval_around(time.iteration_s, half_width);
  std::copy(interval.begin(), interval.end(), time.interval_s);
  time.interval_level = profile.uncertainty.level;

  set_memory_interval(prediction.memory, profile.uncertainty.memory_half_width);
}

void set_memory_interval(MemoryPrediction& memory, double half_width) {
  const auto reserved =
      interval_around(static_cast<double>(memory.total_bytes - memory.runtime_bytes), half_width);
  for (std::size_t end = 0; end < reserved.size(); ++end) {
    memory.interval_bytes[end] = static_cast<Bytes>(reserved[end]) + memory.runtime_bytes;
  }
  memory.verdict = !memory.fits                                      ? MemoryVerdict::kDoesNotFit
                   : memory.interval_bytes[1] <= memory.usable_bytes ? MemoryVerdict::kFits
                                                                     : MemoryVerdict::kTight;
}

}  // namespace shardwright::sim
