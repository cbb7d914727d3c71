// SPDX-License-Identifier: Apache-2.0
// Where more GPUs of a cluster stop paying, and why.
//
// Going from G to r G GPUs pays while the whole run takes at most 1 / (0.8 r) of the days;
// otherwise it costs 25 % more. What the extra GPU time of a token is made of follows from the two
// predictions part by part; how much of it is latency, which grows with the number of ranks and not
// with bytes, is found by predicting the larger one again without any.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "sim/core/model.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

inline constexpr double kPaying = 0.8;  // of the ideal speed-up

/// From one number of GPUs to the next.
struct Growth {
  std::size_t from = 0, to = 0;  // indices of Sweep::options
  double ideal = 2;              // ratio of GPUs
  double speedup = 1;            // days before over days after
  double dearer = 0;             // GPU time of the run: 0.25 is a quarter more

  bool pays() const { return speedup >= kPaying * ideal; }
};

/// What `dearer` is made of; shares of the GPU time before. They add up to it.
struct Causes {
  double communication = 0, compute = 0, host = 0, optimizer = 0, failures = 0;
  double tokens = 0;   // more of them, because steps are larger
  double latency = 0;  // part of the step after, that latency takes: not added
};

struct Scaling {
  std::vector<Growth> growth;        // in order of GPUs
  std::optional<std::size_t> knee;   // option with the most GPUs before the first that do not pay
  std::optional<std::size_t> stops;  // index into growth: the first that does not pay
  std::optional<Causes> causes;      // of that one
  bool batch_limit = false;          // the batch leaves no work for more GPUs than were tried
};

/// Of one offer. Options over the critical batch count as no work for more GPUs.
Scaling scaling_of(const Model& model, const Offer& offer, std::size_t index, const Sweep& sweep);

}  // namespace shardwright::tuner
