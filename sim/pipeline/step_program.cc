// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/step_program.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "sim/core/executed_plan.h"
#include "sim/core/placement.h"
#include "sim/core/workspace.h"
#include "sim/pipeline/completes.h"
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

/// Between parts of the model, in order of direction and place.
std::int16_t channel_of(std::int32_t from_part, std::int32_t to_part) {
  const bool back = to_part < from_part;
  return static_cast<std::int16_t>(2 * std::min(from_part, to_part) + (back ? 1 : 0));
}

/// Of what the stages with a tied table's copies exchange, beyond the channels of passes.
std::int16_t tied_channel(const PipelineShape& shape, bool from_head) {
  return static_cast<std::int16_t>(2 * model_parts(shape) + (from_head ? 1 : 0));
}

/// Puts the blocks of one chunk into its stage's schedule.
class ChunkCopier {
 public:
  ChunkCopier(const Schedule& from, const ChunkContent& content, const PipelineShape& shape,
              ChunkPlace at, std::int64_t layers, Schedule& to)
      : from_(from), to_(to), content_(content), shape_(shape), at_(at), layers_(layers) {
    for (const Stream& stream : from.streams) streams_.push_back(place_of(to.streams, stream));
    for (const char* name : from.event_names) events_.push_back(place_of(to.event_names, name));
  }

  /// One that was written before is run again.
  Section pass(const Action& action, ChunkSection which) {
    const auto [at, fresh] = written_.try_emplace({which, action.kind});
    if (fresh) at->second = write_pass(action.kind, which);
    Section section = at->second;
    section.pass = action;
    return section;
  }
  Section rest(ChunkSection which) {
    Section section = begin();
    copy(which, PassPart::kAll, {});
    return end(section);
  }
  /// The copies of a tied table are on the first and the last stage.
  Section tied_sum() {
    Section section = begin();
    copy(ChunkSection::kTiedSum, PassPart::kAll, ChunkPlace{shape_.stages - 1 - at_.stage, 0});
    return end(section);
  }

 private:
  Section begin() const { return {static_cast<std::uint32_t>(to_.blocks.size()), 0, 1, {}}; }
  Section end(Section section) const {
    section.block_count = static_cast<std::uint32_t>(to_.blocks.size()) - section.first_block;
    return section;
  }

  Section write_pass(PassKind kind, ChunkSection which) {
    const PassEnds ends = ends_of(shape_, at_, kind);
    Section section = begin();
    if (ends.from) copy(ends.receive, PassPart::kAll, ends.from);
    copy(which, part_of(kind), {});
    if (ends.to) copy(ends.send, PassPart::kAll, ends.to);
    return end(section);
  }

  void copy(ChunkSection which, PassPart part, const std::optional<ChunkPlace>& peer) {
    const Section& section = from_.sections[static_cast<std::size_t>(which)];
    for (const Block& block : from_.blocks_of(section)) copy(block, part, peer);
  }

  void copy(const Block& of, PassPart part, const std::optional<ChunkPlace>& peer) {
    const BlockPart here(from_, of, part);
    Block block = of;
    block.first_op = static_cast<std::uint32_t>(to_.ops.size());
    block.first_action = static_cast<std::uint32_t>(to_.memory.size());
    std::vector<std::uint32_t> place(of.op_count);
    for (std::uint32_t i = 0; i < of.op_count; ++i) {
      if (!here.has(i)) continue;
      place[i] = static_cast<std::uint32_t>(to_.ops.size()) - block.first_op;
      copy(from_.ops[of.first_op + i], peer);
    }
    std::vector<MemoryAction> actions;
    for (const MemoryAction& action : from_.actions_of(of)) here.add_to(actions, action);
    for (MemoryAction& action : actions) {
      action.op = place[action.op];
      action.stream = streams_[action.stream];
      if (action.used_on != 0xff) action.used_on = streams_[action.used_on];
      to_.memory.push_back(action);
    }
    block.op_count = static_cast<std::uint32_t>(to_.ops.size()) - block.first_op;
    block.action_count = static_cast<std::uint32_t>(to_.memory.size()) - block.first_action;
    std::stable_sort(to_.memory.end() - block.action_count, to_.memory.end(),
                     [](const MemoryAction& a, const MemoryAction& b) { return a.op < b.op; });
    block.first_unit = unit_in_model(from_, content_, layers_, block.first_unit);
    if (block.op_count > 0) to_.blocks.push_back(block);
  }

  void copy(const Op& of, const std::optional<ChunkPlace>& peer) {
    Op& op = to_.ops.emplace_back(of);
    op.stream = streams_[op.stream];
    for (EventRef& wait : op.waits) wait.name = events_[wait.name];
    op.record.name = events_[op.record.name];
    if (!peer || op.work.kind != WorkKind::kTransfer) return;
    const std::int32_t own = model_part(shape_, at_), other = model_part(shape_, *peer);
    op.peer = static_cast<std::int16_t>(peer->stage);
    if (op.phase == Phase::kReduce) {
      op.channel = tied_channel(shape_, content_.head == (op.kind == OpKind::kSend));
      return;
    }
    op.channel = op.kind == OpKind::kSend ? channel_of(own, other) : channel_of(other, own);
  }

  const Schedule& from_;
  Schedule& to_;
  const ChunkContent& content_;
  const PipelineShape& shape_;
  ChunkPlace at_;
  std::int64_t layers_;
  std::vector<std::uint8_t> streams_, events_;  // of the chunk's, in the stage's schedule
  std::map<std::pair<ChunkSection, PassKind>, Section> written_;
};

/// What chunks hold beside one another; what they work in is one.
void add_persistent(const Schedule& chunk, Schedule& stage) {
  for (const PersistentTensor& tensor : chunk.persistent) {
    const auto known =
        std::find_if(stage.persistent.begin(), stage.persistent.end(),
                     [&](const PersistentTensor& other) { return other.kind == tensor.kind; });
    if (known == stage.persistent.end()) {
      stage.persistent.push_back(tensor);
    } else if (tensor.kind == Persistent::kWorkspace) {
      known->bytes = std::max(known->bytes, tensor.bytes);
    } else {
      known->bytes += tensor.bytes;
    }
  }
  UnitSizes& sizes = stage.unit_sizes;
  const UnitSizes& more = chunk.unit_sizes;
  sizes.in_parts = true;
  sizes.embedding += more.embedding;
  sizes.head += more.head;
  sizes.head_gradient += more.head_gradient;
  sizes.norms += more.norms;
  sizes.moe_layers += more.moe_layers;
  sizes.mixed_layers += more.mixed_layers;
  sizes.predictions += more.predictions;
  sizes.prediction_experts += more.prediction_experts;
  sizes.layer = more.layer;
  sizes.moe_layer = more.moe_layer;
  sizes.experts = more.experts;
}

}  // namespace

std::int32_t unit_in_model(const Schedule& chunk, const ChunkContent& content, std::int64_t layers,
                           std::int32_t unit) {
  if (unit == 0) return 0;
  if (unit <= chunk.layers) return static_cast<std::int32_t>(content.first_layer) + unit;
  return static_cast<std::int32_t>(layers) + (unit == chunk.head_unit() ? 1 : 2);
}

void write_step(const Model& model, const Plan& asked, const Stack& stack, const Cluster& cluster,
                const LayerPrograms& programs, StepProgram& out) {
  out.shape = pipeline_shape(asked);
  out.parts = partition_layers(model, asked, stack);
  if (out.shape.stages == 1) {
    out.stages.resize(1);
    return lower(model, asked, stack, cluster, programs, out.stages.front());
  }
  const PipelineShape& shape = out.shape;
  check_shape(shape);
  const Plan plan = plan_of_chunk(asked, shape);
  const std::vector<ChunkContent>& parts = out.parts;
  std::vector<Schedule> chunks(parts.size());
  for (std::size_t part = 0; part < parts.size(); ++part) {
    lower_chunk(model, plan, stack, cluster, programs, parts[part], chunks[part],
                ChunkUse::kWalked);
  }
  // Ranks have tracks of the same names.
  std::vector<Stream> streams;
  for (const Schedule& chunk : chunks) {
    for (const Stream& stream : chunk.streams) place_of(streams, stream);
  }
  out.stages.assign(static_cast<std::size_t>(shape.stages), {});
  OpId first_id = 0;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    Schedule& schedule = out.stages[static_cast<std::size_t>(s)];
    const Schedule& like = of_chunk(chunks, shape, {s, 0});
    schedule.streams = streams;
    schedule.groups = like.groups;
    schedule.layout = like.layout;
    schedule.sharding = like.sharding;
    schedule.layers = model.layers;
    schedule.first_id = first_id;
    std::vector<ChunkCopier> copiers;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const Schedule& chunk = of_chunk(chunks, shape, {s, c});
      copiers.emplace_back(chunk, of_chunk(parts, shape, {s, c}), shape, ChunkPlace{s, c},
                           model.layers, schedule);
      add_persistent(chunk, schedule);
      const ChunkContent& content = of_chunk(parts, shape, {s, c});
      schedule.stage_layers.push_back({static_cast<std::int32_t>(content.first_layer) + 1,
                                       static_cast<std::int32_t>(content.layers)});
      schedule.sections.push_back(copiers.back().rest(ChunkSection::kPrepare));
    }
    for (const Action& action : stage_actions(shape, s)) {
      ChunkCopier& copier = copiers[static_cast<std::size_t>(action.chunk)];
      schedule.sections.push_back(copier.pass(action, section_of(action, shape.passes())));
    }
    for (ChunkCopier& copier : copiers) {
      const Section sum = copier.tied_sum();
      if (sum.block_count > 0) schedule.sections.push_back(sum);
    }
    for (ChunkCopier& copier : copiers)
      schedule.sections.push_back(copier.rest(ChunkSection::kUpdate));
    for_each_op(schedule, [&](const OpInstance& at, const Op&) { first_id = at.id + 1; });
  }
}

StepProgram executed_step(const Model& model, const Plan& plan, const Stack& stack,
                          std::int64_t gpus_per_node) {
  const bool is_static = stack.memory == MemoryManager::kStatic;
  const Plan walked = is_static ? with_products_in_bf16(plan) : plan;
  Cluster cluster;
  cluster.gpus_per_node = gpus_per_node;
  StepProgram program;
  write_step(model, walked, stack, cluster, LayerPrograms(model, walked, stack), program);
  if (is_static && walked != plan) {
    const Bytes bytes = plan_workspace(model, plan_of_chunk(plan, program.shape)).size_bytes;
    for (Schedule& stage : program.stages) set_workspace(stage, bytes);
  }
  if (program.stages.size() > 1) check_completes(program.stages);
  return program;
}

}  // namespace shardwright::sim
