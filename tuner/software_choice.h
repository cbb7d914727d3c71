// SPDX-License-Identifier: Apache-2.0
// The settings of the software itself, beyond sizes and arithmetic: how tensor ranks overlap their
// messages, who carries tokens to experts, which schedules a pipeline may have
// (profiles/software_settings.h).
//
// They are few, and each combination is a search of its own, pruned by the best of those before
// it: the answer is the best plan over all of them, with the same proof as one search has. Nobody
// is moved to other settings unasked (Request::allow_software), because what tells them apart, a
// few per cent, often lies within the uncertainty of one prediction.
#pragma once

#include <vector>

#include "tuner/model_parallel_space.h"
#include "tuner/scenarios.h"
#include "tuner/search.h"

namespace shardwright::tuner {

/// The request with those settings held fixed whose best plan is the best of all. What the request
/// holds fixed stays; settings as the stack has them are left out, and win where others are no
/// better. Throws Error as the search does where no combination makes sense.
Request with_best_software(const Model& model, const std::vector<Scenario>& scenarios,
                           const Request& request, Extent extent, const SearchOptions& options);

}  // namespace shardwright::tuner
