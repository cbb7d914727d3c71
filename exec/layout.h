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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/device.h"
#include "kernels/random.h"
#include "sim/core/local_shape.h"
#include "sim/core/model.h"
#include "sim/core/schedule.h"
#include "sim/core/tensor.h"

namespace shardwright::exec {

// What a family of models leaves open beside sim/core/model.h: by which names and in which order of
// elements its checkpoints keep weights, and what its norms add to theirs.
//
// Parameters in memory are [out, in], the heads of all queries before those of keys and values,
// whatever the family. A checkpoint of Hugging Face may keep them transposed (gpt2's Conv1D) or
// with query, key and value of a head side by side (gpt_neox); they are turned on the way in and
// out only, and the checkpoints of this project are as memory is. So are queries and keys of
// families whose RoPE turns pairs of neighbours: in memory the two of a pair lie half a rotated
// part apart, as in llama, which changes no score, because both are turned alike.

/// How a file of Hugging Face keeps the elements of a tensor.
enum class StoredOrder : std::uint8_t {
  kAsHere,
  kTransposed,  // [in, out]
  kHeadByHead,  // rows of query, key and value of the first head, then those of the second ...
  kNeighbours   // rows of a head with the two that RoPE turns together side by side
};

/// How the rows of queries and keys are divided.
struct HeadShape {
  std::int64_t heads = 1;
  std::int64_t size = 1;     // elements of one
  std::int64_t rotated = 0;  // of these, the first ones
};
HeadShape head_shape(const Model& model);

/// Names without ".weight" and ".bias"; those of layers stand behind `layer`, the number and a
/// point. Empty: the family has no such tensor.
struct FamilyForm {
  std::string_view family;
  std::string_view embedding, positions = {}, layer, final_norm, head;
  std::string_view qkv, query = {}, key = {}, value = {}, output;
  std::string_view gate_up = {}, gate = {}, up, down;
  std::string_view norm1, norm2;                      // before attention and MLP
  std::string_view post_norm1 = {}, post_norm2 = {};  // behind them
  StoredOrder qkv_order = StoredOrder::kAsHere;
  StoredOrder product_order = StoredOrder::kAsHere;  // of the other matrices of layers
  double norm_offset = 0;                            // is added to the weights of norms
  bool turns_neighbours = false;                     // of a head, by RoPE
};

/// The form of a family that the executor trains; null of others.
const FamilyForm* find_family_form(std::string_view family);

/// A tensor in a file of Hugging Face.
struct StoredForm {
  StoredOrder order = StoredOrder::kAsHere;
  std::vector<std::int64_t> shape;  // here
  HeadShape heads = {};

  std::vector<std::int64_t> file_shape() const;
  /// Where the file has the element that is the index-th here.
  std::int64_t file_index(std::int64_t index) const;
};
StoredForm stored_form(const FamilyForm& form, std::string_view tensor,
                       const std::vector<std::int64_t>& shape, const HeadShape& heads);

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

// Initial weights: normal numbers by global index, drawn by as many threads as there are cores.

/// out[j] = deviation * random.normal(first + j), rounded to fp32, whatever the number of threads:
/// 0 for one a core, where there is enough to draw.
void draw_weights(const kernels::RandomStream& random, std::uint64_t first, double deviation,
                  std::span<float> out, unsigned threads = 0);

}  // namespace shardwright::exec
