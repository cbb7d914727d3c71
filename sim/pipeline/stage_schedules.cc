// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/stage_schedules.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "sim/program/program_writer.h"
#include "sim/schedules/stage_actions.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {
namespace {

const char* word(const char* name) {
  return name;
}
const char* word(const Stream& stream) {
  return stream.name;
}
/// By name; added where it is new.
template <typename Named>
std::uint8_t place_of(std::vector<Named>& all, const Named& wanted) {
  const auto known = std::find_if(all.begin(), all.end(), [&](const Named& other) {
    return std::strcmp(word(other), word(wanted)) == 0;
  });
  const auto at = static_cast<std::uint8_t>(known - all.begin());
  if (known == all.end()) all.push_back(wanted);
  return at;
}

/// Puts the blocks of one chunk into a stage's schedule.
class ChunkCopier {
 public:
  ChunkCopier(const Schedule& from, const ChunkContent& content, std::int64_t layers,
              Bytes message_bytes, Schedule& to)
      : from_(from), to_(to), content_(content), layers_(layers), message_bytes_(message_bytes) {
    for (const Stream& stream : from.streams) streams_.push_back(place_of(to.streams, stream));
    for (const char* name : from.event_names) events_.push_back(place_of(to.event_names, name));
  }

  struct Range {
    std::uint32_t first_block, blocks;
  };
  enum class Part : std::uint8_t { kAll, kPrompt, kDelayed };

  Range add(ChunkSection which, Part part, bool receives) {
    const auto first = static_cast<std::uint32_t>(to_.blocks.size());
    if (receives) copy(ChunkSection::kReceive, Part::kAll);
    copy(which, part);
    return {first, static_cast<std::uint32_t>(to_.blocks.size()) - first};
  }

 private:
  std::int32_t unit_in_model(std::int32_t unit) const {
    if (unit == 0) return 0;
    if (unit <= from_.layers) return static_cast<std::int32_t>(content_.first_layer) + unit;
    return static_cast<std::int32_t>(layers_) + (unit == from_.head_unit() ? 1 : 2);
  }

  void copy(ChunkSection which, Part part) {
    const Section& section = from_.sections[static_cast<std::size_t>(which)];
    for (std::uint32_t b = 0; b < section.block_count; ++b) {
      Block block = from_.blocks[section.first_block + b];
      const std::uint32_t first_op = block.first_op, end = first_op + block.op_count;
      block.first_op = static_cast<std::uint32_t>(to_.ops.size());
      for (std::uint32_t i = first_op; i < end; ++i) {
        const Op& op = from_.ops[i];
        if (part == Part::kAll || (part == Part::kDelayed) == is_delayed(from_, op)) copy(op);
      }
      block.op_count = static_cast<std::uint32_t>(to_.ops.size()) - block.first_op;
      block.first_action = block.action_count = 0;
      block.first_unit = unit_in_model(block.first_unit);
      if (block.op_count > 0) to_.blocks.push_back(block);
    }
  }

  void copy(const Op& of) {
    Op& op = to_.ops.emplace_back(of);
    op.stream = streams_[op.stream];
    for (EventRef& wait : op.waits) wait.name = events_[wait.name];
    op.record.name = events_[op.record.name];
    if (op.work.kind == WorkKind::kTransfer && op.work.group == CommGroup::kPipeline)
      op.work.bytes = message_bytes_;
  }

  const Schedule& from_;
  Schedule& to_;
  const ChunkContent& content_;
  std::int64_t layers_;
  Bytes message_bytes_;
  std::vector<std::uint8_t> streams_, events_;  // of the chunk's, in the stage's schedule
};

/// The blocks of a chunk's passes and update in its stage's schedule.
struct CopiedChunk {
  ChunkCopier::Range forward, backward, prompt, delayed, update;
};

CopiedChunk copy_chunk(ChunkCopier copier, const PipelineShape& shape, ChunkPlace at) {
  const auto comes_from_another = [&](const std::optional<ChunkPlace>& place) {
    return place && place->stage != at.stage;
  };
  const bool takes = comes_from_another(previous_chunk(shape, at));
  const bool takes_back = comes_from_another(next_chunk(shape, at));
  using Part = ChunkCopier::Part;
  CopiedChunk chunk{};
  chunk.forward = copier.add(ChunkSection::kForward, Part::kAll, takes);
  if (shape.info().splits_backward) {
    chunk.prompt = copier.add(ChunkSection::kBackward, Part::kPrompt, takes_back);
    chunk.delayed = copier.add(ChunkSection::kBackward, Part::kDelayed, false);
  }
  chunk.backward = copier.add(ChunkSection::kBackward, Part::kAll, takes_back);
  chunk.update = copier.add(ChunkSection::kUpdate, Part::kAll, false);
  return chunk;
}

const ChunkCopier::Range& blocks_of(const CopiedChunk& chunk, PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return chunk.forward;
    case PassKind::kBackward:
      return chunk.backward;
    case PassKind::kBackwardInput:
      return chunk.prompt;
    case PassKind::kBackwardWeight:
      break;
  }
  return chunk.delayed;
}

}  // namespace

std::vector<Schedule> stage_schedules(const Model& model, const PipelineShape& shape,
                                      const std::vector<ChunkContent>& parts,
                                      std::span<const Schedule* const> chunks,
                                      Bytes message_bytes) {
  // Ranks have tracks of the same names.
  std::vector<Stream> streams;
  for (const Schedule* chunk : chunks) {
    for (const Stream& stream : chunk->streams) place_of(streams, stream);
  }
  std::vector<Schedule> stages(static_cast<std::size_t>(shape.stages));
  OpId first_id = 0;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    Schedule& schedule = stages[static_cast<std::size_t>(s)];
    const Schedule& like = *chunks[static_cast<std::size_t>(model_part(shape, {s, 0}))];
    schedule.streams = streams;
    schedule.groups = like.groups;
    schedule.layout = like.layout;
    schedule.layers = model.layers;
    schedule.first_id = first_id;
    std::vector<CopiedChunk> copied;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const auto part = static_cast<std::size_t>(model_part(shape, {s, c}));
      copied.push_back(copy_chunk(
          {*chunks[part], parts[part], model.layers, message_bytes, schedule}, shape, {s, c}));
    }
    for (const Action& action : stage_actions(shape, s)) {
      const ChunkCopier::Range& blocks =
          blocks_of(copied[static_cast<std::size_t>(action.chunk)], action.kind);
      schedule.sections.push_back({blocks.first_block, blocks.blocks, 1, action});
    }
    for (const CopiedChunk& chunk : copied)
      schedule.sections.push_back({chunk.update.first_block, chunk.update.blocks, 1, {}});
    for_each_op(schedule, [&](const OpInstance& at, const Op&) { first_id = at.id + 1; });
  }
  return stages;
}

Bytes message_bytes(const Model& model, const Plan& plan) {
  const RankShape rank = rank_shape(model, plan);
  return static_cast<Bytes>(2 * static_cast<double>(rank.sharded_tokens) *
                            static_cast<double>(rank.hidden));
}

std::vector<Schedule> stage_schedules(const Model& model, const Plan& asked, const Stack& stack,
                                      std::int64_t gpus_per_node) {
  const PipelineShape shape = pipeline_shape(asked);
  check_shape(shape);
  Plan plan = asked;
  plan.grad_accum = shape.passes();
  const std::vector<ChunkContent> parts = partition_layers(model, asked, stack);
  const LayerPrograms programs(model, plan, stack);
  Cluster cluster;
  cluster.gpus_per_node = gpus_per_node;
  std::deque<Schedule> lowered;
  std::vector<const Schedule*> chunks;
  for (const ChunkContent& part : parts) {
    lower_chunk(model, plan, stack, cluster, programs, part, lowered.emplace_back());
    chunks.push_back(&lowered.back());
  }
  return stage_schedules(model, shape, parts, chunks, message_bytes(model, plan));
}

}  // namespace shardwright::sim
