// SPDX-License-Identifier: Apache-2.0
// The operations of the model: each one of the schedule with its views, handed to the device.
//
// Which tensors an operation reads and writes follows from what it is (sim/program/layer_program.h
// writes the same down for native schedules); where they lie is asked from Activations and
// Sharding.
#pragma once

#include <cstdint>

#include "exec/activations.h"
#include "exec/batch.h"
#include "exec/device.h"
#include "exec/recorder.h"
#include "exec/sharding.h"
#include "sim/core/model.h"
#include "sim/core/op.h"
#include "sim/core/plan.h"

namespace shardwright::exec {

class ModelOps {
 public:
  /// Everything is kept by reference. `stream` is the compute stream.
  ModelOps(const Model& model, const Plan& plan, const Sharding& sharding,
           const Activations& activations, const Workspace& workspace, Device& device,
           StreamId stream, int world_rank);

  /// Parameters and gradients of the micro-step whose operations follow.
  void begin_micro_step(std::int64_t micro_step);

  /// Whether the operation belongs to the model, not to sharding or the update.
  static bool owns(const Op& op);
  void run(const Op& op, std::int32_t unit);
  /// Whether the operation, of the head's unit, is one that run_head covers after the projection.
  static bool runs_with_head(const Op& op);

  /// The four operations of the head, from its projection to its weight gradient, chunk by chunk.
  /// `first` is the id of the projection; without gradients only it and the loss run.
  void run_head(OpId first, std::int32_t unit, Recorder& recorder, bool gradients);
  /// The most chunks that run_head makes.
  std::int64_t head_chunks(Bytes logits_bytes) const;

 private:
  void forward(const Op& op, std::int32_t unit);
  void backward(const Op& op, std::int32_t unit);
  void norm_backward(const Op& op, std::int32_t unit);
  void input_gradient(const Op& op, std::int32_t unit);
  void weight_gradient(const Op& op, std::int32_t unit);
  void bias_gradient(const Op& op, std::int32_t unit);

  Matrix activation(Tensor tensor, std::int32_t unit, std::int64_t cols) const;
  float* statistics(Tensor tensor, std::int32_t unit) const;
  PackedHeads packed(Tensor tensor, std::int32_t unit) const;
  Heads query_heads(const Matrix& from) const;
  Heads key_heads(const Matrix& from) const;
  /// `rows` of a weight that may span several neighbouring tensors.
  Matrix weight(int tensor, std::int64_t rows, std::int64_t cols) const;
  Matrix weight_gradient_of(int tensor, std::int64_t rows, std::int64_t cols) const;
  Array vector(int tensor, std::int64_t size) const;
  Array vector_gradient(int tensor, std::int64_t size) const;
  Array gradient_of(int tensor) const;
  /// Without data when there is no such tensor.
  Array bias(int tensor, std::int64_t size) const;
  const LayerTensors& layer(std::int32_t unit) const { return layout_.layer(unit - 1); }
  float* scratch() const { return static_cast<float*>(workspace_.scratch()); }

  const Model& model_;
  const Sharding& sharding_;
  const ParameterLayout& layout_;
  const Activations& activations_;
  const Workspace& workspace_;
  Device& device_;
  StreamId stream_;
  int world_rank_;
  DType dtype_;
  std::int64_t tokens_;
  std::int64_t packed_cols_;
  std::int64_t gate_up_rows_;
  kernels::AttentionShape attention_;
  std::int64_t micro_step_ = 0;
  DeviceBatch batch_;
};

}  // namespace shardwright::exec
