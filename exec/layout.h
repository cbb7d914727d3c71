// SPDX-License-Identifier: Apache-2.0
// Where every parameter of a model lies: in which unit, at which offset, and which part of it a
// rank owns.
//
// A unit (embedding, layer, head, and the norms where a strategy keeps them apart) is one flat
// array: its tensors one after the other, matrices first, padded at the end to a multiple of the
// shard group. Query, key and value matrices are neighbours, and so are gate and up, so that each
// pair or triple is one matrix of one product. Rank r of a shard group owns the r-th equal part.
//
// Beside its place every element has a global index that does not depend on units, padding or
// ranks: initial values, random rounding and checkpoints are keyed by it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/device.h"
#include "sim/core/model.h"

namespace shardwright::exec {

enum class Initial { kNormal, kZeros, kOnes };

struct ParameterTensor {
  std::string name;                 // as in Hugging Face checkpoints
  std::vector<std::int64_t> shape;  // [out, in], [V, C] or [n]
  std::int32_t unit = 0;
  std::int64_t offset = 0;  // elements from the unit's begin
  std::int64_t size = 0;
  std::uint64_t first_index = 0;  // global index of its first element
  Initial initial = Initial::kNormal;
  bool decays = false;  // matrices do, norms and biases do not
};

/// Indices into ParameterLayout::tensors(); -1 where a layer has no such tensor.
struct LayerTensors {
  int qkv = -1;  // the query matrix, which key and value follow
  int qkv_bias = -1;
  int output = -1;
  int output_bias = -1;
  int gate_up = -1;  // gate, which up follows; just up without gate
  int gate_up_bias = -1;
  int down = -1;
  int down_bias = -1;
  int norm1 = -1;
  int norm2 = -1;
  int query_norm = -1;
  int key_norm = -1;
};

struct ParameterUnit {
  std::int64_t elements = 0;     // of its tensors
  std::int64_t padded = 0;       // a multiple of the shard group; 0: the unit does not exist
  std::int64_t first_owned = 0;  // place of the unit's share among all shares of a rank
  int first_tensor = 0;
  int tensors = 0;
};

/// The part of a tensor that a rank owns.
struct OwnedPart {
  int tensor = 0;
  std::int64_t tensor_offset = 0;  // elements from the tensor's begin
  std::int64_t share_offset = 0;   // elements from the begin of the rank's share of the unit
  std::int64_t count = 0;
};

class ParameterLayout {
 public:
  /// Throws Error naming what the executor cannot run: it trains RMSNorm decoders with rotary
  /// positions.
  ParameterLayout(const Model& model, bool separates_norms, std::int64_t shard_ranks);

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
  std::int64_t padded_elements() const;
  std::int64_t owned_elements() const { return padded_elements() / shard_ranks_; }
  std::int64_t largest_unit() const;  // norms apart
  /// Parameters of the model, without padding.
  std::int64_t parameters() const { return parameters_; }

  int embedding() const { return embedding_; }
  int final_norm() const { return final_norm_; }
  int head() const { return head_; }  // the embedding when tied
  bool tied() const { return head_ == embedding_; }
  const LayerTensors& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }

  /// What rank `shard_rank` owns of a unit, in order.
  std::vector<OwnedPart> owned(std::int32_t unit, std::int64_t shard_rank) const;

 private:
  std::int64_t shard_ranks_;
  std::int64_t parameters_ = 0;
  std::vector<ParameterTensor> tensors_;
  std::vector<ParameterUnit> units_;
  std::vector<LayerTensors> layers_;
  int embedding_ = -1;
  int final_norm_ = -1;
  int head_ = -1;
};

}  // namespace shardwright::exec
