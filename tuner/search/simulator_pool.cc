// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/simulator_pool.h"

#include <utility>

namespace shardwright::tuner {

std::unique_ptr<sim::Predictor> SimulatorPool::take(const std::string& physics) {
  const std::lock_guard lock(mutex_);
  std::vector<std::unique_ptr<sim::Predictor>>& free = at_rest_[physics];
  if (free.empty()) return nullptr;
  std::unique_ptr<sim::Predictor> predictor = std::move(free.back());
  free.pop_back();
  return predictor;
}

void SimulatorPool::give_back(const std::string& physics,
                              std::unique_ptr<sim::Predictor> predictor) {
  if (!predictor) return;
  const std::lock_guard lock(mutex_);
  at_rest_[physics].push_back(std::move(predictor));
}

}  // namespace shardwright::tuner
