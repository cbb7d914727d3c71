// SPDX-License-Identifier: Apache-2.0
// When no division fits: how far the closest plan is from fitting, and the least change that lets
// one fit. Every way is tried (advice.h).
#pragma once

#include "tuner/advice.h"
#include "tuner/model_parallel_search.h"

namespace shardwright::tuner {

/// `search` found nothing that fits in the space of `request`. At most `count` ways.
Advice advise(ModelParallelSearch& search, const Model& model,
              const std::vector<Scenario>& scenarios, const Request& request,
              const SearchOptions& options, std::size_t count = 3);

}  // namespace shardwright::tuner
