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
  kNotAllowed,  // it changes the arithmetic or the framework's settings, which nobody allowed
  kOutside      // beyond the values that the search tries
};

/// Gains below it are no reason to leave the values that the search tries.
inline constexpr double kWorthMoving = 1e-3;
inline constexpr int kMostMoves = 16;  // of an answer to better neighbours

struct KnobStep {
  std::string knob;  // as its flag is called: "ckpt-layers"
  std::string from, to;
  Freedom freedom = Freedom::kSearched;
  Judgement judgement;
  double cost = 0;  // its score against the choice's, minus 1
};

/// Of these steps the best of those that nothing holds fixed, beyond the values that the search
/// tries, and worth moving for; null where there is none.
const KnobStep* best_outside(const std::vector<KnobStep>& steps);

/// Steps by knob; what contradicts the model or the cluster is left out.
std::vector<KnobStep> knob_steps(Search& search, const Request& request, const Space& space,
                                 const Model& model, const profiles::Profile& profile,
                                 const Found& choice);

/// Moves `choice` to neighbours beyond the values that the search tries, as long as one that
/// nothing holds fixed is better; returns the steps of where it ends.
std::vector<KnobStep> climb(Search& search, const Request& request, const Space& space,
                            const Model& model, const profiles::Profile& profile, Found& choice);

}  // namespace shardwright::tuner
