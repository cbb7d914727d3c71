// SPDX-License-Identifier: Apache-2.0
// When gathered parameters are dead: after the last operation that reads them before their buffer
// is gathered into again or the step ends.
//
// The plan is made once from the schedule. Filling dead buffers with signalling NaNs turns a wait
// that a schedule forgot, or a buffer that rotates too early, into a NaN in the loss.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "exec/sharding.h"
#include "sim/core/schedule.h"

namespace shardwright::exec {

class Poison {
 public:
  /// An inactive plan never says that anything is dead.
  Poison(const Schedule& schedule, const Sharding& sharding, bool active);

  bool active() const { return active_; }
  void begin_step() { next_ = 0; }
  /// Calls f(unit) for every unit whose parameters die with the operation; operations of a step are
  /// asked for in ascending order.
  template <class F>
  void for_each_dead(OpId id, F&& f) {
    while (next_ < dead_.size() && dead_[next_].first < id) ++next_;
    for (; next_ < dead_.size() && dead_[next_].first == id; ++next_) f(dead_[next_].second);
  }

 private:
  bool active_;
  std::vector<std::pair<OpId, std::int32_t>> dead_;  // by operation
  std::size_t next_ = 0;
};

}  // namespace shardwright::exec
