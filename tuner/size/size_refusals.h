// SPDX-License-Identifier: Apache-2.0
// Why a size is left out of a sweep, in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tuner/search/search.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

/// Share of a run's time that has to be useful; below it the run never ends.
inline constexpr double kLeastUseful = 0.01;

/// "131.8 GiB".
std::string gib(double bytes);

/// Master weights and moments are there on every plan, at best shared by all GPUs.
Bytes least_state_bytes(const Model& model, const SizingJob& job, std::int64_t gpus);

/// `nearest`: the plan that comes closest; none where the search was stopped before.
std::string why_nothing_fits(const std::optional<Overshoot>& nearest);

/// Why a run that is interrupted so often gets nowhere.
std::string no_progress(const Goodput& goodput);

}  // namespace shardwright::tuner
