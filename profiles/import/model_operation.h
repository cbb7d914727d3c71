// SPDX-License-Identifier: Apache-2.0
// Which operation of a transformer an element-wise operator belongs to, by the extents of its
// tensors.
//
// PyTorch says "aten::mul" of a norm, a rotary embedding and an activation alike, but their tensors
// end in the hidden size, the head dimension and the ffn size. Told only where the model is known;
// where two sizes are equal, or for shapes of no such size, the operator stays unknown.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "profiles/import/tensor_shapes.h"
#include "sim/core/model.h"
#include "sim/core/op.h"

namespace shardwright::profiles {

/// None: not told by the shapes.
std::optional<OpKind> operation_in(const Model& model, std::string_view name,
                                   const std::vector<Argument>& arguments);

}  // namespace shardwright::profiles
