// SPDX-License-Identifier: Apache-2.0
// A unit's operations as a small dataflow program: operations that name the tensors they read and
// write.
//
// From such a program follow, without any further description: what must survive from forward to
// backward under a recompute policy, which operations produce the rest again, and when every tensor
// comes to life and dies. program_writer.h writes the programs of embedding, layer and head.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/tensor.h"

namespace shardwright::sim {

struct ProgramTensor {
  Bytes bytes = 0;
  MemoryCategory category = MemoryCategory::kActivations;
};

/// What stands in a pass for the stream of its own collectives, and for their events; the writer of
/// a schedule gives them numbers.
inline constexpr std::uint8_t kUnitCommunication = 0xff;
enum class UnitEvent : std::uint8_t { kComputed = 0xfd, kArrived = 0xfe, kArrivedToo = 0xff };

/// The operations of one unit in one direction, with lifetimes.
struct UnitPass {
  std::vector<Op> ops;
  std::vector<MemoryAction> memory;  // op indices local to this pass
};

/// Bytes and category of each tensor of a unit.
class ProgramTensors {
 public:
  ProgramTensor& operator[](Tensor tensor) { return sizes_[index_of(tensor)]; }
  const ProgramTensor& operator[](Tensor tensor) const { return sizes_[index_of(tensor)]; }

 private:
  std::array<ProgramTensor, kTensorCount> sizes_{};
};

/// A unit before it is laid out on streams.
struct UnitProgram {
  ProgramTensors tensors;
  Ops forward, recompute, backward;  // recompute: what runs again before backward
  TensorSet kept;                    // from forward to backward
  TensorSet held;                    // of these, what stays until all of backward has ended
};

/// What backward reads of what forward makes (or was given).
TensorSet needed_tensors(const Ops& forward, const Ops& backward);

/// What `plan` keeps of a layer whose backward needs `needed` (its input included), `forward` being
/// the layer's forward operations.
TensorSet kept_tensors(const Model& model, const Plan& plan, const Ops& forward,
                       const TensorSet& needed, const ProgramTensors& tensors);

/// The forward operations that lead from kept tensors to the needed ones that were not kept.
Ops recomputation(const Ops& forward, const TensorSet& needed, const TensorSet& kept);

/// When tensors come to life and die in a list, by its operations' indices. `alive` exist before it
/// and belong to it; `kept` survive it. kX is owned by the forward pass of its unit; dX of the next
/// unit by the backward pass.
std::vector<MemoryAction> lifetimes(const Ops& list, const ProgramTensors& tensors,
                                    const TensorSet& alive, const TensorSet& kept, bool backward);

}  // namespace shardwright::sim
