// SPDX-License-Identifier: Apache-2.0
// All that the tuner asks of the simulator about a plan: its prediction, and what is certain of its
// time and memory before it is predicted.
//
// Nothing else of the tuner knows how a plan is simulated. Bounds are kept by family, a number that
// plans share which differ only in how many layers they recompute.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "profiles/profile.h"
#include "sim/bounds/closed_form.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/predict.h"
#include "tuner/search/simulator_pool.h"

namespace shardwright::tuner {

/// Whether the closed form (sim/bounds) is of such plans: dense layers, sharded without buckets,
/// that ask for nothing else.
bool has_closed_form(const Plan& plan, const Model& model, const Stack& stack);

/// Of one thread. The model and the profile outlive it.
class Simulator {
 public:
  Simulator(const Model& model, const profiles::Profile& profile, Predictors predictors = {});

  /// Throws Error when the plan contradicts the model or the cluster.
  sim::Prediction predict(const Plan& plan, const sim::PredictOptions& options = {});
  /// At most the time of its prediction; never less with more layers recomputed.
  double least_step_s(const Plan& plan, std::uint64_t family);
  /// At most what its prediction takes of a GPU, runtime included.
  Bytes least_bytes(const Plan& plan, std::uint64_t family);
  /// The same of a plan whose family nobody may ask about.
  Bytes least_bytes(const Plan& plan);
  /// Whether that is what it takes; otherwise the allocator has its say.
  bool knows_bytes(const Plan& plan) const;
  /// For another simulator of the same model and profile; this one is not used any more.
  Predictors give_up() { return std::move(predictors_); }

 private:
  const sim::FamilyBounds& bounds(const Plan& plan, std::uint64_t family);
  sim::Predictor& predictor();
  sim::ClosedForm& closed();

  const Model& model_;
  const profiles::Profile& profile_;
  Predictors predictors_;
  std::unordered_map<std::uint64_t, sim::FamilyBounds> families_;
};

}  // namespace shardwright::tuner
