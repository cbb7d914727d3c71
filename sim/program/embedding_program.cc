// SPDX-License-Identifier: Apache-2.0
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

Program embedding_forward(const ProgramWriter& w) {
  Program list = {w.elementwise(OpKind::kEmbedding, Phase::kForward, w.stack().embedding,
                                w.elements(w.model().hidden), false, {}, {of_next_unit(kX)})};
  list.back().op.weight = Weight::kEmbedding;
  return list;
}

Program embedding_backward(ProgramWriter& w) {
  const Model& model = w.model();
  const std::int64_t rows =
      model.vocab + (model.position == Position::kLearned ? model.max_positions : 0);
  w.size_weight_gradient(kWeightGradient0, rows * model.hidden);
  ProgramOp backward =
      w.elementwise(OpKind::kEmbedding, Phase::kBackward, w.stack().embedding,
                    w.elements(model.hidden), true, {of_next_unit(kDX)}, {kWeightGradient0});
  backward.op.weight = Weight::kEmbedding;
  // The dense gradient is filled with zeros first.
  backward.op.work.bytes += rows * model.hidden * w.gradient_width();
  return {backward};
}

}  // namespace shardwright::sim
