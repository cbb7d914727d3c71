// SPDX-License-Identifier: Apache-2.0
// How a search ends from outside, between two evaluations of plans.
#pragma once

#include <atomic>

namespace shardwright::tuner {

/// Thrown by an evaluation that is not wanted any more.
struct SearchEnded {};

struct SearchEnd {
  const std::atomic<bool>* stop = nullptr;     // end with the best plan so far, once there is one
  const std::atomic<bool>* give_up = nullptr;  // end without one, too
  std::atomic<bool> has_plan{false};

  bool is_stopped() const { return (stop != nullptr && stop->load()) || is_given_up(); }
  bool is_given_up() const { return give_up != nullptr && give_up->load(); }
  /// Within a search; outside one only giving up counts.
  void check() const {
    if (is_given_up() || (has_plan && is_stopped())) throw SearchEnded();
  }
  void check_given_up() const {
    if (is_given_up()) throw SearchEnded();
  }
};

}  // namespace shardwright::tuner
