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

#include "sim/predict.h"

namespace shardwright::tuner {

/// Of one model. Thread-safe.
class SimulatorPool {
 public:
  /// One of a profile that `physics` names; null where all are in use.
  std::unique_ptr<sim::Predictor> take(const std::string& physics);
  void give_back(const std::string& physics, std::unique_ptr<sim::Predictor> predictor);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::unique_ptr<sim::Predictor>>> at_rest_;
};

}  // namespace shardwright::tuner
