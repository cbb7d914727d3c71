// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/pass_parts.h"

#include <algorithm>
#include <iterator>

namespace shardwright::sim {
namespace {

bool touches(const Op& op, const MemoryAction& action) {
  const auto is_it = [&](const Operand& operand) {
    return operand.tensor == action.tensor && operand.offset == action.offset;
  };
  return std::any_of(std::begin(op.in), std::end(op.in), is_it) ||
         std::any_of(std::begin(op.out), std::end(op.out), is_it);
}

}  // namespace

PassPart part_of(PassKind kind) {
  if (kind == PassKind::kBackwardInput) return PassPart::kPrompt;
  return kind == PassKind::kBackwardWeight ? PassPart::kDelayed : PassPart::kAll;
}

bool is_in(const Op& op, PassPart part) {
  return part == PassPart::kAll || (part == PassPart::kDelayed) == op.deferrable;
}

ChunkSection section_of(const Action& action, std::int32_t passes) {
  const bool first = action.micro_batch == 0;
  if (action.kind == PassKind::kForward)
    return first ? ChunkSection::kFirstForward : ChunkSection::kForward;
  if (action.micro_batch + 1 == passes) return ChunkSection::kLastBackward;
  return first ? ChunkSection::kFirstBackward : ChunkSection::kBackward;
}

PassEnds ends_of(const PipelineShape& shape, ChunkPlace at, PassKind kind) {
  if (kind == PassKind::kBackwardWeight) return {};
  const auto elsewhere = [&](std::optional<ChunkPlace> place) {
    return place && place->stage != at.stage ? place : std::nullopt;
  };
  const auto before = elsewhere(previous_chunk(shape, at));
  const auto behind = elsewhere(next_chunk(shape, at));
  if (kind == PassKind::kForward) return {before, behind};
  return {behind, before, ChunkSection::kReceiveGradient, ChunkSection::kSendGradient};
}

bool BlockPart::has(std::uint32_t index) const {
  return is_in(op(index), part_);
}

std::uint32_t BlockPart::op_of(const MemoryAction& action) const {
  if (part_ == PassPart::kAll || action.acquire || action.offset == kAllUnits) return action.op;
  std::uint32_t last = action.op;
  bool delayed = op(action.op).deferrable;
  for (std::uint32_t i = 0; i < block_.op_count; ++i) {
    if (!op(i).deferrable || !touches(op(i), action)) continue;
    last = delayed ? std::max(last, i) : i;
    delayed = true;
  }
  return last;
}

}  // namespace shardwright::sim
