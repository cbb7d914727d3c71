// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/simulator_pool.h"

#include <utility>

namespace shardwright::tuner {

Predictors SimulatorPool::take(const std::string& physics) {
  const std::lock_guard lock(mutex_);
  std::vector<Predictors>& free = at_rest_[physics];
  if (free.empty()) return {};
  Predictors predictors = std::move(free.back());
  free.pop_back();
  return predictors;
}

void SimulatorPool::give_back(const std::string& physics, Predictors predictors) {
  const std::lock_guard lock(mutex_);
  at_rest_[physics].push_back(std::move(predictors));
}

}  // namespace shardwright::tuner
