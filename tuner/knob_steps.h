// SPDX-License-Identifier: Apache-2.0
// Why this plan: every knob of the chosen plan moved one step, all else equal, and predicted anew.
//
// A step is the next number of layers, the next micro-batch of the same global batch, half or twice
// the shard group; of a knob without an order, the best of its other values. Knobs that the user
// holds fixed are moved too, because what holding them costs is worth knowing.
#pragma once

#include <string>
#include <vector>

#include "tuner/search.h"

namespace shardwright::tuner {

enum class Freedom : std::uint8_t {
  kSearched,    // the search had the choice and decided against it
  kFixed,       // held by the request
  kNotAllowed,  // it would change the arithmetic, which the request does not allow
  kOutside      // beyond the values that the search tries
};

struct KnobStep {
  std::string knob;  // as its flag is called: "ckpt-layers"
  std::string from, to;
  Freedom freedom = Freedom::kSearched;
  Judgement judgement;
  double cost = 0;  // its score against the choice's, minus 1
};

/// Steps by knob; what contradicts the model or the cluster is left out.
std::vector<KnobStep> knob_steps(Search& search, const Request& request, const Space& space,
                                 const Model& model, const profiles::Profile& profile,
                                 const Found& choice);

}  // namespace shardwright::tuner
