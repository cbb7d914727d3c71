// SPDX-License-Identifier: Apache-2.0
// What one cluster and number of GPUs is offered: plans of several batches and frameworks.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "sim/core/parallelism.h"
#include "tuner/search/request.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

/// A larger batch or other software has to make the whole run this much shorter.
inline constexpr double kWorth = 1.02;

/// What competes for one size: the fastest whole run so far, and that of data parallelism alone.
struct SizeCandidates {
  std::optional<Sized> best, plain;
  std::optional<LeftOut> refusal;  // of data parallelism
  std::optional<Request> unfit;    // that was refused because nothing fits, not yet by how much
  std::string parallel_why;        // no plan that is model-parallel

  /// Later ones are larger batches or other software: they have to be worth it.
  void enter(Sized option) {
    const bool wins = !best || option.cost.days * kWorth < best->cost.days;
    if (!divides(option) && (!plain || option.cost.days < plain->cost.days)) plain = option;
    if (wins) best = std::move(option);
  }
  static bool divides(const Sized& option) { return features_of(option.prediction.plan).any(); }
};

}  // namespace shardwright::tuner
