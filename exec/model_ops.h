// SPDX-License-Identifier: Apache-2.0
// The operations of the model: a table from what an operation is to the call of the device that
// does it.
//
// An operation names its operands and its weight (sim/program writes them); a call takes them in
// the order in which the program of a unit gives them, asks Activations and Sharding where they
// lie, and hands the views to the device. Nothing here knows which operation comes before or after
// another. Only native programs are run: packed heads, packed gate and up, residuals added by
// products, losses in chunks.
//
// The head's four operations run chunk by chunk of tokens; the views of all others are of all
// tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exec/activations.h"
#include "exec/batch.h"
#include "exec/device.h"
#include "exec/fp8_products.h"
#include "exec/recorder.h"
#include "exec/sharding.h"
#include "sim/core/model.h"
#include "sim/core/op.h"
#include "sim/core/plan.h"

namespace shardwright::exec {

/// The attention of a micro-batch of the plan.
kernels::AttentionShape attention_shape_of(const Model& model, const Plan& plan);

class ModelOps {
 public:
  /// Everything is kept by reference. `stream` is the compute stream.
  ModelOps(const Model& model, const Plan& plan, const Sharding& sharding,
           const Activations& activations, const Workspace& workspace, Device& device,
           StreamId stream, int world_rank);

  /// While on, attention runs for every number of documents that it tells apart, and for the batch
  /// last: a later one may have any.
  void rehearse(bool on) { rehearses_ = on; }
  /// Parameters and gradients of the micro-batch whose operations follow.
  void begin_micro_step(std::int64_t micro_step);

  /// Whether the operation belongs to the model, not to sharding or the update.
  static bool owns(const Op& op);
  void run(const Op& op, std::int32_t unit);
  /// Whether the operation, of the head's unit, is one that run_head covers after the projection.
  static bool runs_with_head(const Op& op);

  /// The operations of the head, from its projection to its weight gradient, chunk by chunk.
  /// `first` is the id of the first one; without gradients only projection and loss are given.
  void run_head(std::span<const Op> ops, OpId first, std::int32_t unit, Recorder& recorder);
  static constexpr std::uint32_t kHeadOps = 4;
  static constexpr std::uint32_t kHeadOpsWithoutGradients = 2;
  /// The most chunks that run_head makes.
  std::int64_t head_chunks(Bytes logits_bytes) const;

 private:
  using Call = void (ModelOps::*)(const Op& op, std::int32_t unit);
  struct Entry {
    OpKind kind;
    bool backward;
    Call call;
  };
  static const Entry kTable[];

  void embedding(const Op& op, std::int32_t unit);
  void embedding_backward(const Op& op, std::int32_t unit);
  void norm(const Op& op, std::int32_t unit);
  void norm_backward(const Op& op, std::int32_t unit);
  void head_norms(const Op& op, std::int32_t unit);
  void head_norms_backward(const Op& op, std::int32_t unit);
  void rope(const Op& op, std::int32_t unit);
  void attention(const Op& op, std::int32_t unit);
  void attention_backward(const Op& op, std::int32_t unit);
  void activation(const Op& op, std::int32_t unit);
  void activation_backward(const Op& op, std::int32_t unit);
  void product(const Op& op, std::int32_t unit);
  void input_gradient(const Op& op, std::int32_t unit);
  void weight_gradient(const Op& op, std::int32_t unit);
  void bias_gradient(const Op& op, std::int32_t unit);
  void loss(const Op& op, std::int32_t unit);

  /// [tokens of the chunk, columns of the tensor]
  Matrix rows(const Operand& operand, std::int32_t unit) const;
  /// fp32, some for each token.
  float* statistics(const Operand& operand, std::int32_t unit) const;
  PackedHeads packed(const Operand& operand, std::int32_t unit) const;
  /// [tokens, heads, head_dim] of packed heads or of query (key) heads alone.
  Heads query_heads(const Matrix& from) const;
  Heads key_heads(const Matrix& from) const;

  const WeightTensors& tensors_of(const Op& op, std::int32_t unit) const;
  Matrix weight(const Op& op, std::int32_t unit) const;  // [out, in]
  Matrix gradient(const Op& op, std::int32_t unit) const;
  Norm norm_of(const Op& op, std::int32_t unit, std::int64_t size) const;
  float* norm_statistics(const Op& op, const Operand& operand, std::int32_t unit) const;
  Norm head_norm_of(int tensor) const;
  /// A single tensor; without data when there is none.
  Array parameter(int tensor, std::int64_t size) const;
  Array parameter_gradient(int tensor, std::int64_t size) const;
  /// Where products of this weight are in fp8: those of layers; null: in the parameters' type.
  Fp8Products* fp8(const Op& op) { return fp8_ && op.weight != Weight::kHead ? &*fp8_ : nullptr; }
  /// Those of the micro-batch; in a rehearsal of packed documents others before them.
  std::vector<PackedDocuments> documents() const;
  /// Whether a tensor's gradient is added to what earlier micro-batches left.
  bool adds(int tensor) const;
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
  kernels::AttentionShape attention_;
  std::optional<Fp8Products> fp8_;
  double embedding_scale_ = 1;  // in the type of parameters, as transformers have it
  std::int64_t micro_step_ = 0;
  DeviceBatch batch_;
  bool rehearses_ = false;
  // The tokens that operations work on, and whether a loss leaves its gradient.
  std::int64_t first_row_ = 0;
  std::int64_t row_count_;
  bool makes_gradients_ = true;
};

}  // namespace shardwright::exec
