// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/model_operation.h"

namespace shardwright::profiles {
namespace {

bool same_shapes(const TensorShape& a, const TensorShape& b) {
  return a.dims == b.dims && a.element_bytes == b.element_bytes;
}

}  // namespace

std::optional<OpKind> operation_in(const Model& model, std::string_view name,
                                   const std::vector<Argument>& arguments) {
  const TensorShape* largest = nullptr;
  for (const Argument& argument : arguments) {
    if (!argument.is_tensor()) continue;
    const TensorShape& shape = argument.tensors[0];
    if (largest == nullptr || shape.elements() > largest->elements()) largest = &shape;
  }
  if (largest == nullptr || largest->dims.size() < 2) return std::nullopt;
  const std::int64_t last = largest->dims[largest->dims.size() - 1];
  // [batch, length, heads, dim], its complex half, or pairs of it.
  if (largest->dims.size() >= 4) {
    const bool heads = last == model.head_dim || 2 * last == model.head_dim || last == 2;
    return heads ? std::optional(OpKind::kRope) : std::nullopt;
  }
  if (last == model.vocab) return OpKind::kLoss;
  if (last == model.ffn || last == 2 * model.ffn) {
    return last == model.hidden ? std::nullopt : std::optional(OpKind::kActivation);
  }
  // Statistics of rows: one number each.
  if (last == 1 && largest->dims.size() == 3) return OpKind::kNorm;
  if (last != model.hidden) return std::nullopt;
  const bool adds = name == "aten::add" || name == "aten::add_";
  if (adds && arguments.size() >= 2 && arguments[0].is_tensor() && arguments[1].is_tensor() &&
      same_shapes(arguments[0].tensors[0], arguments[1].tensors[0])) {
    // Norms work in fp32 where the residual stream is half as wide.
    return largest->element_bytes <= 2 ? OpKind::kResidual : OpKind::kNorm;
  }
  return OpKind::kNorm;
}

}  // namespace shardwright::profiles
