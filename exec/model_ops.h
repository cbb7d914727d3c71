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
// The head's operations from its projection to its weight gradient run chunk by chunk of tokens;
// the views of all others are of all tokens.
//
// Tensor ranks have parts of the weights, and of the tokens between them (sim/core/local_shape.h);
// what they gather and add up are operations as others. A sum that tensor
// ranks share has a leaf for each of Plan::feature_parts(); a rank adds up those that it has as the
// ranks do theirs: neighbours first, so that the bits do not depend on how many ranks there are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/batch.h"
#include "exec/communicator.h"
#include "exec/device.h"
#include "exec/step_memory.h"
#include "sim/core/local_shape.h"
#include "sim/core/model.h"
#include "sim/core/parallelism.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {

// The products of layers in fp8: operands are quantised into the workspace just before they are
// multiplied, along the dimension over which the product adds.
//
//   forward           y[T, N]  = x[T, K]   w[N, K]^T
//   input gradient    dx[T, K] = dy[T, N]  (w^T)[K, N]^T
//   weight gradient   dw[N, K] = (dy^T)[N, T]  (x^T)[K, T]^T
//
// tensorwise has x and w in E4M3 and dy, whose numbers are further apart, in E5M2 (as
// TransformerEngine's current scaling and torchao); rowwise and mxfp8 have all in E4M3. A scale is
// of what is there now: of the whole weight, as it was gathered, and of the tokens of one
// micro-batch of one rank. So W ranks multiply what one rank that accumulates W micro-batches does,
// to the bit and without any collective; two micro-batches joined into one have other scales.
//
// Backward wants transposes of what forward reads. Where a device multiplies codes both ways
// (multiplies_turned) it is handed those of rows instead.

class Fp8Products {
 public:
  /// Works in `room` of the device, which the plan sizes. Recipes are tensorwise, rowwise, mxfp8.
  Fp8Products(const Fp8Workspace& plan, std::byte* room, Fp8Recipe recipe, Device& device,
              StreamId stream);

  void forward(Matrix x, Matrix w, const Addends& addends, Matrix y);
  void input_gradient(Matrix d_y, Matrix w, Matrix d_x);
  /// `adds`: the finished product is added to what is there.
  void weight_gradient(Matrix d_y, Matrix x, Matrix d_w, bool adds);
  /// The gradient that the last input_gradient quantised may change from now on.
  void forget() { quantized_gradient_ = nullptr; }

 private:
  struct Place {
    std::byte* data = nullptr;
    Bytes bytes = 0;
  };
  kernels::Fp8Matrix operand(const Place& place, std::int64_t rows, std::int64_t cols,
                             kernels::Fp8Format format) const;
  kernels::Fp8Format gradient_format() const;
  /// The operand of a product that adds along the other dimension of a matrix, made of its rows.
  static kernels::Fp8Matrix turned(kernels::Fp8Matrix rows);

  Device& device_;
  StreamId stream_;
  kernels::Fp8Scaling scaling_;
  bool turns_;  // no transposes are made
  Place left_, right_, gradient_;
  const void* quantized_gradient_ = nullptr;  // what is in gradient_, turned
};

// Which products in fp8 a GPU has, by its compute capability: tables of cuBLAS's documentation
// (cublasLtMatmul, narrow precisions) of what layouts and which scales it takes where.

/// Codes with one scale may be multiplied along either dimension: Blackwell of data centres (10,
/// 11). Ada, Hopper and GeForce Blackwell want the one that is summed over last.
constexpr bool multiplies_fp8_both_ways(int compute_major) {
  return compute_major == 10 || compute_major == 11;
}

/// Why the GPU cannot train by the recipe, as a sentence with what would do; empty: it can.
std::string why_no_fp8(std::string_view gpu, int compute_major, int compute_minor,
                       Fp8Recipe recipe);

/// The attention of a micro-batch of the plan, of the heads of tensor rank `tensor_rank`.
kernels::AttentionShape attention_shape_of(const Model& model, const Plan& plan,
                                           std::int64_t tensor_rank = 0);

/// Its input's columns are what tensor ranks share, and its results are added up.
constexpr bool is_row_parallel(Weight weight) {
  return weight == Weight::kOutput || weight == Weight::kDown;
}
inline Array flat(const Matrix& matrix) {
  return {matrix.data, matrix.dtype, matrix.rows * matrix.cols};
}

class ModelOps {
 public:
  /// Everything is kept by reference. `streams` are the schedule's, the compute stream first.
  ModelOps(const Model& model, const Plan& plan, const Sharding& sharding,
           const Activations& activations, const Workspace& workspace, Device& device,
           const std::vector<StreamId>& streams, const RankGroups& groups, const RankPlace& place);

  /// While on, attention runs for every number of documents that it tells apart, and for the batch
  /// last: a later one may have any.
  void rehearse(bool on) { rehearses_ = on; }
  /// Parameters and gradients of the micro-batch whose operations follow.
  void begin_micro_step(std::int64_t micro_step);

  /// Whether the operation belongs to the model, not to sharding or the update.
  static bool owns(const Op& op);
  void run(const Op& op, std::int32_t unit);

  /// Calls run_chunk(first, end, tokens) for each chunk of the tokens whose logits have room; what
  /// it runs works on these. Without gradients the loss leaves logits as they are.
  template <class RunChunk>
  void for_each_chunk(std::int32_t unit, bool makes_gradients, const RunChunk& run_chunk) {
    const std::int64_t chunk = chunk_tokens(activations_.bytes(Tensor::kLogits, unit));
    makes_gradients_ = makes_gradients;
    for (std::int64_t first = 0; first < shape_.tokens; first += chunk) {
      chunk_ = {first, std::min(first + chunk, shape_.tokens)};
      run_chunk(first, chunk_->end, shape_.tokens);
    }
    chunk_.reset();
    makes_gradients_ = true;
  }
  /// How many there are at most.
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

  // Of tensor ranks.
  void gather(const Op& op, std::int32_t unit);
  void reduce(const Op& op, std::int32_t unit);
  void sum_norm_gradients(const Op& op, std::int32_t unit);
  void sum_key_value_gradients(const Op& op, std::int32_t unit);
  /// The part of Tensor::kKeyValueGradients that the ranks with this rank's key/value heads fill:
  /// rows of keys and values, then their biases. `all` makes it the whole.
  Array key_value_gradients(const Op& op, std::int32_t unit, bool all) const;
  bool shares_keys(const Op& op) const {
    return op.weight == Weight::kQkv && shape_.tp > model_.kv_heads;
  }
  void shared_weight_gradient(const Op& op, std::int32_t unit, const Matrix& d_y, const Matrix& x);
  void loss_in_parts(const Op& op, std::int32_t unit);
  void product_in_leaves(const Op& op, std::int32_t unit, const Addends& addends);
  void input_gradient_in_leaves(const Op& op, std::int32_t unit);
  /// Where a norm's gradient goes, one leaf after the other: make(leaf, leaves, to, adds).
  template <class Make>
  void norm_gradient(const Op& op, std::int32_t unit, int tensor, std::int64_t leaves,
                     const Make& make);
  /// Adds up leaves of `out`'s type that lie in `from`, one behind the other.
  void fold_leaves(Array from, std::int64_t leaves, Array out);
  /// Leaf number `leaf` of the rows of a weight that this rank has, as ranges of these.
  std::vector<Slice::Range> leaf_rows(const Op& op, std::int32_t unit, std::int64_t leaf) const;
  Slice::Range leaf_vocabulary(std::int32_t unit, std::int64_t leaf) const;
  std::int64_t first_row_of(const WeightTensors& table) const;
  /// The first token of the vocabulary whose logits this rank has.
  std::int64_t first_vocab(std::int32_t unit) const;
  /// Norms whose gradients this rank makes from some of the tokens or heads.
  std::vector<int> partial_norms(std::int32_t unit) const;
  const float* copied_statistics(const Matrix& of);
  StreamId stream_of(const Op& op) const { return streams_[op.stream]; }

  /// Tokens of a tensor that this rank has.
  std::int64_t tokens_of(Tensor tensor) const {
    return is_of_own_tokens(tensor) ? shape_.sharded_tokens : shape_.tokens;
  }
  /// [tokens, or those of the chunk; columns of the tensor]
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
  /// As part of the gradients of `unit`.
  Array gradient_in(std::int32_t unit, int tensor, std::int64_t size) const;
  /// Adds `from` to the gradient of a tensor, or puts it there in the first micro-batch.
  void store_gradient(StreamId stream, Array from, int tensor);
  /// Where products of this weight are in fp8: those of layers; null: in the parameters' type.
  Fp8Products* fp8(const Op& op) { return fp8_ && op.weight != Weight::kHead ? &*fp8_ : nullptr; }
  /// Those of the micro-batch; in a rehearsal of packed documents others before them.
  std::vector<PackedDocuments> documents() const;
  /// Whether a tensor's gradient is added to what earlier micro-batches left.
  bool adds(int tensor) const;
  std::int64_t chunk_tokens(Bytes logits_bytes) const;
  float* scratch() const { return static_cast<float*>(workspace_.scratch()); }

  const Model& model_;
  const Sharding& sharding_;
  const ParameterLayout& layout_;
  const Activations& activations_;
  const Workspace& workspace_;
  Device& device_;
  const std::vector<StreamId>& streams_;
  StreamId stream_;  // of what computes
  const RankGroups& groups_;
  int world_rank_;
  DType dtype_;
  RankShape shape_;
  Model local_;  // what of the model this rank has
  std::int64_t tensor_rank_;
  std::int64_t leaves_;  // that this rank has
  SumOrder order_;       // of tensor ranks
  std::int64_t packed_cols_;
  kernels::AttentionShape attention_;
  std::optional<Fp8Products> fp8_;
  double embedding_scale_ = 1;  // in the type of parameters, as transformers have it
  std::int64_t micro_step_ = 0;
  DeviceBatch batch_;
  bool rehearses_ = false;
  // The tokens of the head that operations work on, and whether a loss leaves its gradient.
  std::optional<Slice::Range> chunk_;
  bool makes_gradients_ = true;
};

}  // namespace shardwright::exec
