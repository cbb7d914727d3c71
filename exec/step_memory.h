// SPDX-License-Identifier: Apache-2.0
// All device memory of a rank: exactly what the plan predicts, allocated before the first step.
//
// One allocation holds the tensors that outlive a step, as the schedule declares them by name; one
// holds the activations, laid out by plan_arena. Nothing is allocated later, so the measured peak
// is the predicted one to the byte.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "exec/device.h"
#include "sim/core/arena.h"
#include "sim/core/schedule.h"

namespace shardwright::exec {

class StepMemory {
 public:
  StepMemory(const Schedule& schedule, Device& device);

  /// The bytes that the schedule needs on a device.
  static Bytes planned_bytes(const Schedule& schedule);

  /// A persistent tensor by its name in the schedule. Aborts when it is not declared or has another
  /// size: schedule and executor then disagree about the plan.
  void* persistent(std::string_view what, Bytes bytes) const;
  bool declares(std::string_view what) const;
  /// Zeroes the persistent tensors.
  void clear(Device& device, StreamId stream) const;

  /// Everything that outlives a step.
  void* persistent() const { return persistent_->data(); }
  Bytes persistent_bytes() const { return persistent_bytes_; }

  std::byte* activations() const { return static_cast<std::byte*>(activations_->data()); }
  const ArenaPlan& arena() const { return arena_; }

 private:
  struct Place {
    std::string_view what;
    Bytes bytes = 0;
    Bytes offset = 0;
  };
  const Place* find(std::string_view what) const;

  ArenaPlan arena_;
  std::vector<Place> places_;
  Bytes persistent_bytes_ = 0;
  std::unique_ptr<Allocation> persistent_;
  std::unique_ptr<Allocation> activations_;
};

}  // namespace shardwright::exec
