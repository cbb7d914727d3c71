// SPDX-License-Identifier: Apache-2.0
// All that the tuner asks of the simulator about a plan: its prediction, and what is certain of its
// time and memory before it is predicted.
//
// Nothing else of the tuner knows how a plan is simulated. Bounds are kept by family, a number that
// plans share which differ only in how many layers they recompute.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "profiles/profile.h"
#include "sim/bounds/bounds.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/predict.h"

namespace shardwright::tuner {

/// Of one thread. The model and the profile outlive it.
class Simulator {
 public:
  Simulator(const Model& model, const profiles::Profile& profile,
            std::unique_ptr<sim::Predictor> predictor = nullptr);

  /// Throws Error when the plan contradicts the model or the cluster.
  sim::Prediction predict(const Plan& plan, const sim::PredictOptions& options = {});
  /// At most the time of its prediction; never less with more layers recomputed.
  double least_step_s(const Plan& plan, std::uint64_t family);
  /// At most what its prediction takes of a GPU, runtime included.
  Bytes least_bytes(const Plan& plan, std::uint64_t family);
  /// The same without its family.
  Bytes least_bytes(const Plan& plan);
  /// The same, or sooner less where that is too much already.
  Bytes least_bytes_or_too_many(const Plan& plan);
  /// Whether that is what it takes; otherwise the allocator has its say.
  bool knows_bytes(const Plan& plan) const;
  /// For another simulator of the same model and profile; this one is not used any more.
  std::unique_ptr<sim::Predictor> give_up() { return std::move(predictor_); }

 private:
  /// Of a plan with one stage.
  const sim::FamilyBounds& bounds(const Plan& plan, std::uint64_t family);
  sim::Predictor& predictor();

  const Model& model_;
  const profiles::Profile& profile_;
  std::unique_ptr<sim::Predictor> predictor_;  // made when it is first asked
  std::unordered_map<std::uint64_t, sim::FamilyBounds> families_;
};

}  // namespace shardwright::tuner
