// SPDX-License-Identifier: Apache-2.0
// Why this plan: every knob of the chosen plan moved one step, and predicted anew.
//
// Where ranks share data alone, all else stays equal: a step is the next number of layers,
// the next micro-batch of the same global batch, half or twice the shard group; of a knob without
// an order, the best of its other values. Sizes of tensor, pipeline, context and
// expert parallelism are halved and doubled, the batch kept: the ranks that a
// neighbour gains or loses, data parallelism gives or takes; chunks, micro-batch and recomputation
// are the best for the neighbour, because that is what one would run. What contradicts the model or
// the cluster is left out. Knobs that the user holds fixed are moved too, because what holding them
// costs is worth knowing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tuner/search/search.h"

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

/// The steps of a plan that `search` found, or of a neighbour of one.
std::vector<KnobStep> steps_of(Search& search, const Model& model, const Request& request,
                               const SearchOptions& options, const Found& choice);

/// Of a plan whose ranks share data alone.
std::vector<KnobStep> knob_steps(Search& search, const Model& model, const Request& request,
                                 const Found& choice);
/// Of any other.
std::vector<KnobStep> size_steps(const FrameworkPlans& framework, const Model& model,
                                 const Request& request, const SearchOptions& options,
                                 const Found& choice);

/// Moves `choice` to neighbours beyond the values that the search tries, as long as one that
/// nothing holds fixed is better; returns the steps of where it ends. `steps_of` writes the steps
/// of a plan.
std::vector<KnobStep> climb(Found& choice,
                            const std::function<std::vector<KnobStep>(const Found&)>& steps_of);

/// The answer of a search that climbed: `choice` before the plans of `top`, in the place of the
/// first where the two are not different().
void put_first(std::vector<Found>& top, Found choice);

}  // namespace shardwright::tuner
