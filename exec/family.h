// SPDX-License-Identifier: Apache-2.0
// What a family of models leaves open beside sim/core/model.h: by which names and in which order of
// elements its checkpoints keep weights, and what its norms add to theirs.
//
// Parameters in memory are [out, in], the heads of all queries before those of keys and values,
// whatever the family. A checkpoint of Hugging Face may keep them transposed (gpt2's Conv1D) or
// with query, key and value of a head side by side (gpt_neox); they are turned on the way in and
// out only, and the checkpoints of this project are as memory is. So are queries and keys of
// families whose RoPE turns pairs of neighbours: in memory the two of a pair lie half a rotated
// part apart, as in llama, which changes no score, because both are turned alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/model.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
