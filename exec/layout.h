// SPDX-License-Identifier: Apache-2.0
// Where every parameter of a model lies: in which unit, at which offset, and which part of it a
// rank owns.
//
// A unit (embedding, layer, head, and the norms where a strategy keeps them apart) is one flat
// array: its tensors one after the other, matrices first, padded at the end to a multiple of the
// shard group. Query, key and value matrices are neighbours, and so are gate and up, so that each
// pair or triple is one matrix of one product. Rank r of a shard group owns the r-th equal part.
//
// Tensor ranks hold parts of a tensor (sim/core/local_shape.h): some of its rows, or some of its
// columns. A unit then has the parts of this rank. A stage of a pipeline holds nothing of the units
// of other stages.
//
// Beside its place every element has a global index that does not depend on units, padding or
// ranks: initial values, random rounding and checkpoints are keyed by it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/device.h"
#include "exec/family.h"
#include "sim/core/local_shape.h"
#include "sim/core/model.h"
#include "sim/core/schedule.h"
#include "sim/core/tensor.h"

namespace shardwright::exec {

enum class Initial { kNormal, kZeros, kOnes };

/// What a rank holds of a tensor: the ranges of rows, one behind the other, of a range of columns.
struct HeldPart {
  std::vector<Slice::Range> rows;
  Slice::Range cols{0, 1};
  /// Of the ranges of rows, the first ones that count here: tensor ranks before this one hold the
  /// others, too.
  std::size_t counted = 1;

  std::int64_t row_count() const;
  std::int64_t elements() const { return row_count() * cols.size(); }
};

struct ParameterTensor {
  std::string name;                 // as in Hugging Face checkpoints
  std::vector<std::int64_t> shape;  // [out, in], [V, C] or [n]
  std::int32_t unit = 0;
  std::int32_t gradient_unit = 0;  // with whose gradients its own is summed
  std::int64_t offset = 0;         // elements from the unit's begin
  std::int64_t size = 0;           // of the whole tensor
  HeldPart held;
  std::uint64_t first_index = 0;  // global index of its first element
  Initial initial = Initial::kNormal;
  bool decays = false;  // matrices do, norms and biases do not
  StoredForm stored;    // in files of Hugging Face

  /// Elements from one row to the next.
  std::int64_t row_length() const { return shape.size() > 1 ? shape[1] : 1; }
};

/// The tensors that make one weight: indices into ParameterLayout::tensors(), -1 where there is no
/// such tensor.
struct WeightTensors {
  int first = -1;         // those that are packed with it follow it
  int second = -1;        // of the two norms of heads: that of keys; of embeddings: of positions;
                          // of norms before attention and MLP: that behind them
  int bias = -1;          // of `first`; likewise
  std::int64_t rows = 0;  // of all of them together
  std::int64_t cols = 1;
  std::int32_t gradient_unit = -1;  // of this use of `first`, where it is not that tensor's
};

struct ParameterUnit {
  std::int64_t elements = 0;  // of its tensors
  std::int64_t padded = 0;    // as the schedule has it; 0: the unit does not exist
  int first_tensor = 0;
  int tensors = 0;  // others may lie between them
};

/// A part of a tensor that a rank owns: `rows` runs of `cols` elements, which lie a row of the
/// tensor apart in it, and one behind the other in the rank's share of the unit.
struct OwnedPart {
  int tensor = 0;
  std::int64_t tensor_offset = 0;  // of the first element from the tensor's begin
  std::int64_t rows = 1;
  std::int64_t cols = 0;
  std::int64_t share_offset = 0;  // elements from the begin of the rank's share of the unit
  bool counts = true;             // here, where other tensor ranks hold the same

  std::int64_t count() const { return rows * cols; }
};

class ParameterLayout {
 public:
  /// The tensors of a model that check_run() passes (sim/core/executed_plan.h) in the units of the
  /// schedule, as the rank at `place` holds them. Throws Error where a layer has other norms than
  /// its family.
  ParameterLayout(const Model& model, const Schedule& schedule, const Parallelism& parallel = {},
                  const RankPlace& place = {});

  /// By unit and place.
  const std::vector<ParameterTensor>& tensors() const { return tensors_; }
  const ParameterTensor& tensor(int index) const {
    return tensors_[static_cast<std::size_t>(index)];
  }
  /// Index of a tensor, or -1.
  int find(std::string_view name) const;

  std::int64_t shard_ranks() const { return shard_ranks_; }
  std::int32_t units() const { return static_cast<std::int32_t>(units_.size()); }
  std::int32_t head_unit() const { return units() - 2; }
  std::int32_t norm_unit() const { return units() - 1; }
  const ParameterUnit& unit(std::int32_t index) const {
    return units_[static_cast<std::size_t>(index)];
  }
  std::int64_t share(std::int32_t unit_index) const {
    return unit(unit_index).padded / shard_ranks_;
  }
  /// Parameters of the model, without padding.
  std::int64_t parameters() const { return parameters_; }

  /// The head adds to the embedding's gradient of the same micro-batch.
  bool adds_uses() const { return adds_uses_; }
  /// The table that is embedding and head; -1 where they are two.
  int tied_table() const { return tied_ ? weight(Weight::kEmbedding, 0).first : -1; }
  /// Standard deviation of initial matrices.
  double initial_deviation() const { return initial_deviation_; }
  /// What is added to the weights of norms.
  double norm_offset() const { return norm_offset_; }
  /// The tensors of the norms that operations of `unit` name.
  const std::vector<int>& norms(std::int32_t unit) const {
    return norms_[static_cast<std::size_t>(unit)];
  }
  /// A weight that operations of `unit` name, as this rank holds it.
  const WeightTensors& weight(Weight weight, std::int32_t unit) const {
    return weights_[static_cast<std::size_t>(unit)][static_cast<std::size_t>(weight)];
  }

  /// What rank `shard_rank` owns of a unit, in order.
  std::vector<OwnedPart> owned(std::int32_t unit, std::int64_t shard_rank) const;

 private:
  struct Draft;
  class Drafts;
  void place(const Draft& draft, std::int32_t unit, std::uint64_t first_index);
  /// Of a tied model: a stage with the head alone has a copy of the table, which counts where the
  /// embedding is, and its own last norm.
  void place_tied(const Schedule& schedule, Draft& draft) const;

  std::int64_t shard_ranks_;
  std::int64_t parameters_ = 0;
  std::vector<ParameterTensor> tensors_;
  std::vector<ParameterUnit> units_;
  std::vector<std::array<WeightTensors, kWeightKinds>> weights_;  // by unit that uses them
  std::vector<std::vector<int>> norms_;                           // likewise
  bool tied_;
  bool adds_uses_;
  double initial_deviation_;
  double norm_offset_ = 0;
};

}  // namespace shardwright::exec
