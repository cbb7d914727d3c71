// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_writer.h"
#include "sim/program/real.h"

namespace shardwright::sim {

using enum Tensor;

UnitProgram ProgramWriter::embedding() const {
  UnitProgram unit;
  unit.tensors = tensors_;
  const RankShape& s = shape_;
  const Operand out = of_next_unit(kX);
  Op look_up = elementwise(OpKind::kEmbedding, stack_.embedding, elements(s.hidden), false, {},
                           {s.sequence_parallel ? Operand(kPartialSum) : out});
  look_up.weight = Weight::kEmbedding;
  unit.forward.push_back(look_up);
  if (s.tp > 1)
    unit.forward.push_back(
        reduction(s.sequence_parallel ? Operand(kPartialSum) : out, out, Overlap::kNone));
  if (plan_.numerics.lora > 0) return unit;  // nothing before the first layer is trained
  Operand gradient = of_next_unit(kDX);
  if (s.sequence_parallel) {
    Op gather = collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes());
    add_input(gather, gradient);
    add_output(gather, kDGathered);
    unit.backward.push_back(gather);
    gradient = kDGathered;
  }
  const std::int64_t rows =
      s.vocab + (model_.position == Position::kLearned ? model_.max_positions : 0);
  Op backward =
      elementwise(OpKind::kEmbedding, stack_.embedding, elements(s.hidden), true, {gradient});
  backward.weight = Weight::kEmbedding;
  // The dense gradient is filled with zeros first.
  backward.work.bytes += rows * s.hidden * gradient_width();
  unit.backward.push_back(backward);
  make_weight_gradient(unit, unit.backward.back(), 0, rows * s.hidden);
  return unit;
}

}  // namespace shardwright::sim
