// SPDX-License-Identifier: Apache-2.0
// All device memory of a rank: exactly what the plan predicts, allocated before the first step.
//
// One allocation holds the tensors that outlive a step, where sim/core/placement.h puts them, but
// for those of collectives, which are of the shard group's kind of memory; one holds the
// activations, laid out by plan_arena. Nothing is allocated later, so the measured peak
// is the predicted one to the byte.
#pragma once

#include <memory>

#include "exec/communicator.h"
#include "exec/device.h"
#include "sim/core/arena.h"
#include "sim/core/placement.h"
#include "sim/core/schedule.h"

namespace shardwright::exec {

class StepMemory {
 public:
  StepMemory(const Schedule& schedule, Communicator& shard, Device& device);

  /// The bytes that the schedule needs on a device.
  static Bytes planned_bytes(const Schedule& schedule) { return static_memory_bytes(schedule); }

  /// A persistent tensor that the schedule has.
  std::byte* persistent(Persistent kind) const;
  /// Zeroes the persistent tensors.
  void clear(Device& device, StreamId stream) const;

  /// Where a place of the placement is.
  std::byte* at(Bytes offset) const;
  const Placement& placement() const { return placement_; }

  std::byte* activations() const { return static_cast<std::byte*>(activations_->data()); }
  const ArenaPlan& arena() const { return arena_; }

 private:
  ArenaPlan arena_;
  Placement placement_;
  std::unique_ptr<Allocation> collective_;
  std::unique_ptr<Allocation> persistent_;
  std::unique_ptr<Allocation> activations_;
};

}  // namespace shardwright::exec
