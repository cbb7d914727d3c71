// SPDX-License-Identifier: Apache-2.0
// What one rank holds of a model, and the tokens it works on: the one place that says which weights
// tensor and expert parallelism cut, along what, and which every rank keeps whole.
//
// Products that many heads or channels come out of are cut by rows of their weight [n, k]
// (column-parallel in Megatron's words), those that take them in by columns (row-parallel); so are
// the biases of the former. Tables of the vocabulary are cut by rows, of which the last rank may
// have fewer. Norms, routers, biases of the latter and the products down to latent vectors are on
// every rank. Routed experts are dealt out whole over the expert group; expert tensor parallelism
// cuts each as tensor parallelism cuts an MLP. With more tensor ranks than key/value heads
// neighbours hold the same head.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/layout.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/tensor.h"

namespace shardwright {

struct RankShape {
  std::int64_t tokens = 0;          // of a micro-batch, where no sequence parallelism divides them
  std::int64_t sharded_tokens = 0;  // between the matrices
  std::int64_t seq_len = 0;         // tokens of a sequence that attention sees
  std::int64_t tp = 1, cp = 1;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;  // of this rank
  std::int64_t hidden = 0, ffn = 0, vocab = 0;         // ffn, vocab: of this rank
  bool sequence_parallel = false;
  std::int64_t v_head_dim = 0;  // of values; head_dim without latent attention
  std::int64_t experts = 0;     // of a layer on this rank
  std::int64_t expert_ffn = 0, shared_ffn = 0;
  Recurrence recurrence;  // with the heads of this rank
  std::int64_t q_dim() const { return heads * head_dim; }
  std::int64_t kv_dim() const { return kv_heads * head_dim; }
  std::int64_t attention_out_dim() const { return heads * v_head_dim; }
};
/// Of the rank that holds the most.
RankShape rank_shape(const Model& model, const Plan& plan);
/// The model with the heads, channels and rows of the vocabulary that such a rank has.
Model model_of_rank(const Model& model, const RankShape& shape);
/// Whether sequence parallelism divides the tokens of a tensor between tensor ranks.
bool is_of_own_tokens(Tensor tensor);

/// Part number `index` of `count` equal ones along one dimension of a weight, the last ones shorter
/// where they do not divide it.
enum class SliceAlong : std::uint8_t { kWhole, kRows, kColumns, kExperts };
struct Slice {
  SliceAlong along = SliceAlong::kWhole;
  std::int16_t index = 0, count = 1;

  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  /// Of `size` rows, columns or experts, whichever it is cut along.
  Range of(std::int64_t size) const;
  bool operator==(const Slice&) const = default;
};

/// A matrix of a module, or its bias or norm: `rows` numbers in one column. Of routed experts each
/// of `experts`.
struct WeightShape {
  Weight weight = Weight::kNone;
  std::int64_t rows = 0, columns = 1, experts = 1;
  SliceAlong along = SliceAlong::kWhole;  // what tensor parallelism, or of experts its own, cuts
  bool is_bias = false, is_norm = false;
  std::int64_t heads = 0;  // of keys and values: more ranks than these hold the same ones

  bool is_matrix() const { return columns > 1; }
  bool is_routed() const;  // a part of a routed expert
  std::int64_t elements() const { return experts * rows * columns; }
};

/// Modules of a model whose weights are kept and divided alike.
enum class ModelUnit : std::uint8_t {
  kEmbedding,   // with learned positions
  kDenseLayer,  // a layer without experts
  kMoeLayer,    // one with them, but for its routed experts
  kExperts,     // the routed experts of one layer
  kHead,        // with the last norm; without a table of its own where that is the embedding's
  kNorms        // of all layers and the last one, which some strategies keep apart
};
inline constexpr int kModelUnits = 6;

/// In the order of the data flow. Queries, keys and values are three weights, gate and up two, also
/// where software multiplies them as one.
std::vector<WeightShape> weights_of(const Model& model, ModelUnit unit);
/// Of a layer of that kind, but for its routed experts.
std::vector<WeightShape> weights_of(const Model& model, LayerKind kind);

/// What of a weight a rank keeps: which experts, and which part of each.
struct WeightSlices {
  Slice experts, each;
  std::int64_t elements(const WeightShape& of) const;
};
WeightSlices slices_of(const WeightShape& weight, const Parallelism& parallel,
                       const RankPlace& place = {});

// The units of a model on one rank: how many numbers each kind has there, and over which group a
// strategy shards it.
//
// The routed experts of a layer are a unit of their own, because fewer ranks hold the same ones: a
// strategy that gathers and reduces units needs to know no more about experts than their group.

/// Of the rank that holds the most.
class ModelUnits {
 public:
  ModelUnits() = default;
  ModelUnits(const Model& model, const Parallelism& parallel);

  /// Of one unit of that kind; kNorms of all layers, which their layers count, too.
  std::int64_t elements(ModelUnit unit) const { return elements_[static_cast<std::size_t>(unit)]; }
  /// Rows of the vocabulary: the embedding's table, the head's, or both where they are tied.
  std::int64_t vocabulary() const { return vocabulary_; }
  /// Of one module of multi-token prediction: the product before its layer.
  std::int64_t prediction_projection() const { return prediction_projection_; }

 private:
  std::array<std::int64_t, kModelUnits> elements_{};
  std::int64_t vocabulary_ = 0, prediction_projection_ = 0;
};

}  // namespace shardwright
