// SPDX-License-Identifier: Apache-2.0
// Predictors between searches. What one has learned of a profile (programs, costs, units of
// pipelines) serves every search of it: other batches and numbers of GPUs, other frameworks' plans
// of the same stack, adverse scenarios that change no rate.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/bounds/closed_form.h"
#include "sim/predict.h"

namespace shardwright::tuner {

/// Of one profile, made when they are first asked for; of one thread at a time.
struct Predictors {
  std::unique_ptr<sim::Predictor> predictor;
  std::unique_ptr<sim::ClosedForm> closed;
};

/// Of one model. Thread-safe.
class SimulatorPool {
 public:
  /// Those of a profile that `physics` names, or new ones.
  Predictors take(const std::string& physics);
  void give_back(const std::string& physics, Predictors predictors);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<Predictors>> at_rest_;
};

}  // namespace shardwright::tuner
