// SPDX-License-Identifier: Apache-2.0
// What of an executor goes into checkpoints and Hugging Face folders, and comes back.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/train/checkpoint.h"
#include "exec/train/safetensors.h"

namespace shardwright::exec {

/// Host memory for copies of a rank's state. It is kept from one to the next: memory that a GPU
/// copies to at full speed takes seconds to make.
class SnapshotMemory {
 public:
  explicit SnapshotMemory(Device& device) : device_(device) {}
  /// Room for `bytes`; what it held is lost.
  std::byte* room(Bytes bytes);

 private:
  Device& device_;
  std::unique_ptr<Allocation> memory_;
  Bytes bytes_ = 0;
};

/// A copy of what one rank owns.
struct StateSnapshot {
  std::vector<TensorSpec> specs;                 // as in the rank's file of a checkpoint
  std::vector<std::span<const std::byte>> data;  // in the memory that it was taken with
};

/// Bytes that a snapshot of the executor's state takes.
Bytes snapshot_bytes(const Executor& executor);
/// Parameters and moments, in the types in which they are kept; the host waits for the device once.
StateSnapshot take_snapshot(Executor& executor, SnapshotMemory& memory);

/// "parameter:NAME:OFFSET holds values that are not finite" of the first tensor that does; empty:
/// all are numbers.
std::string first_not_finite(const StateSnapshot& snapshot);

/// Names and shapes of all tensors, by name.
std::vector<CheckpointTensor> tensors_of(const ParameterLayout& layout);

/// Puts the checkpoint's state into the executor, whatever number of ranks and strategy wrote it.
/// Throws Error when the model or the moments' type is another.
void restore(Executor& executor, const Plan& plan, const Checkpoint& checkpoint);

/// Parameters from a model in safetensors. Throws Error naming the tensor that lacks, has another
/// shape or is none of the model's.
void load_weights(Executor& executor, const SafetensorsModel& model, const std::string& name);

/// Writes config.json and model.safetensors (fp32, in parts of at most `max_part_bytes`) as Hugging
/// Face transformers load them.
void export_model(const Checkpoint& checkpoint, const std::filesystem::path& folder,
                  std::int64_t max_part_bytes = std::int64_t{5} << 30);

}  // namespace shardwright::exec
