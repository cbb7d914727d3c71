// SPDX-License-Identifier: Apache-2.0
// Why this plan: every knob of the chosen plan moved one step, all else equal, and predicted anew.
//
// A step is the next number of layers, the next micro-batch of the same global batch, half or twice
// the shard group; of a knob without an order, the best of its other values. Knobs that the user
// holds fixed are moved too, because what holding them costs is worth knowing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tuner/search.h"

namespace shardwright::tuner {

enum class Freedom : std::uint8_t {
  kSearched,    // the search had the choice and decided against it
  kFixed,       // held by the request
  kNotAllowed,  // it would change the arithmetic, which the request does not allow
  kSetting,     // it would change a setting of the framework, which the request does not allow
  kOutside      // beyond the values that the search tries
};

/// Gains below it are no reason to leave the values that the search tries.
inline constexpr double kWorthMoving = 1e-3;

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

/// Moves `choice` to neighbours beyond the values that the search tries, as long as one that
/// nothing holds fixed is better; returns the steps of where it ends. `steps_of` writes the steps
/// of a plan.
std::vector<KnobStep> climb(Found& choice,
                            const std::function<std::vector<KnobStep>(const Found&)>& steps_of);

/// The answer of a search that climbed: `choice` before the plans of `top`, in the place of the
/// first where the two do not `differ`.
void put_first(std::vector<Found>& top, Found choice, bool (*differ)(const Plan&, const Plan&));

}  // namespace shardwright::tuner
