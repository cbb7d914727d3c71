// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/pass_parts.h"

#include <algorithm>

#include "sim/core/memory_actions.h"
#include "sim/program/low_precision.h"

namespace shardwright::sim {
namespace {

/// What a delayed operation keeps of a tensor that it touches.
Bytes bytes_read(const Op& op, const MemoryAction& action) {
  const bool is_gradient = op.kind == OpKind::kWeightGradient && op.in[0].tensor == action.tensor &&
                           op.in[0].offset == action.offset;
  if (!is_gradient || op.work.kind != WorkKind::kGemm || op.keeps_high_precision)
    return action.bytes;
  const double element =
      op.narrow_input ? narrow_bytes(op.work.precision) : static_cast<double>(op.work.dtype_bytes);
  return static_cast<Bytes>(element * static_cast<double>(op.work.m * op.work.k * op.work.groups));
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

BlockPart::Release BlockPart::release_of(const MemoryAction& action) const {
  Release release;
  Bytes read = 0;
  for (std::uint32_t i = 0; i < block_.op_count; ++i) {
    if (!op(i).deferrable || (i != action.op && !touches(op(i), action))) continue;
    release.delayed = i;
    read += bytes_read(op(i), action);
  }
  release.kept = std::min(read, action.bytes);
  release.prompt = action.op;
  const auto is_prompt = [&] {
    return !op(release.prompt).deferrable && touches(op(release.prompt), action);
  };
  if (release.kept == action.bytes || !op(action.op).deferrable) return release;
  while (release.prompt > 0 && !is_prompt()) --release.prompt;
  return release;
}

void BlockPart::add_to(std::vector<MemoryAction>& actions, const MemoryAction& action) const {
  const auto add = [&](std::uint32_t at, Bytes bytes) {
    if (!has(at)) return;
    actions.push_back(action);
    actions.back().op = at;
    actions.back().bytes = bytes;
  };
  if (part_ == PassPart::kAll || action.acquire || action.offset == kAllUnits)
    return add(action.op, action.bytes);
  const Release release = release_of(action);
  if (release.kept < action.bytes) add(release.prompt, action.bytes - release.kept);
  if (release.kept > 0) add(release.delayed, release.kept);
}

}  // namespace shardwright::sim
