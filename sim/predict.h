// SPDX-License-Identifier: Apache-2.0
// The whole of a prediction: lower the plan, cost its operations, simulate the step, follow its
// memory.
//
// This is what `predict` prints, `validate` scores and `tune` ranks. A Predictor keeps its memo
// tables and buffers, so that thousands of plans for one model and profile are cheap; predict() is
// the one-off form.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/timeline.h"
#include "sim/prediction.h"

namespace shardwright::sim {

class Bounds;
struct StepProgram;

struct PredictOptions {
  bool reserved = true;      // replay the caching allocator; otherwise reserved = allocated
  bool skip_repeats = true;  // false: simulate every layer
  /// Ends without more than memory.fits, which is false, as soon as the replay shows that the plan
  /// takes more bytes than this, runtime included.
  Bytes most_bytes = std::numeric_limits<Bytes>::max();
  /// Who runs it, where that is somebody whose runs are published: known cells have known errors.
  std::string source = {};
  Timeline* timeline =
      nullptr;  // filled with spans and the memory curve; implies the full simulation
};

class Predictor {
 public:
  Predictor(Model model, profiles::Profile profile);
  ~Predictor();
  Predictor(Predictor&&) noexcept;
  Predictor& operator=(Predictor&&) noexcept;

  /// Throws Error when the plan contradicts the model or the cluster.
  Prediction predict(const Plan& plan, const PredictOptions& options = {});
  /// What is certain of plans without predicting them.
  Bounds& bounds();
  /// What the last predict() simulated, whose operations its timeline refers to. Of a pipeline it
  /// is there with a timeline only.
  const StepProgram& program() const;
  const Model& model() const;
  const profiles::Profile& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Prediction predict(const Model& model, const profiles::Profile& profile, const Plan& plan,
                   const PredictOptions& options = {});

/// Training FLOPs of one step on one rank: 6 per matrix weight and token, and causal attention
/// counted half.
double model_flops(const Model& model, const Plan& plan);

// What a plan asks for beyond data parallelism, and what of it is modelled.

/// Throws Error where the framework or the GPU does not do what the plan asks for, or nothing
/// models it yet.
void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile);

}  // namespace shardwright::sim
