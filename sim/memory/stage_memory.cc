// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/stage_memory.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "sim/core/placement.h"
#include "sim/pipeline/step_program.h"
#include "sim/schedules/stage_actions.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

namespace {

/// Where the schedule has a steady state, as many passes are in flight with fewer micro-batches,
/// once warm-up is over.
PipelineShape shortened(PipelineShape shape) {
  if (shape.info().has_steady_state)
    shape.micro_batches = std::min(shape.micro_batches, 4 * shape.stages);
  return shape;
}

}  // namespace

/// The chunks of a plan, lowered for their memory; those that are alike once.
class StageMemory::Chunks {
 public:
  void lower(const Model& model, const Plan& plan, const profiles::Profile& profile,
             const LayerPrograms& programs, const std::vector<ChunkContent>& parts, ChunkUse use) {
    distinct_ = 0;
    of_part_.clear();
    for (const ChunkContent& part : parts) {
      std::size_t known = 0;
      while (known < distinct_ && !alike(part, lowered_[known].content)) ++known;
      of_part_.push_back(known);
      if (known < distinct_) continue;
      if (lowered_.size() == distinct_) lowered_.emplace_back();
      Lowered& chunk = lowered_[distinct_++];
      chunk.content = part;
      lower_chunk(model, plan, profile.stack, profile.cluster, programs, part, chunk.schedule, use);
      chunk.memory = ChunkMemory(chunk.schedule);
    }
  }
  ChunkMemory& of(const PipelineShape& shape, ChunkPlace at) {
    return lowered_[of_chunk(of_part_, shape, at)].memory;
  }
  /// Whether a stage has the chunks of the one before it, and neither begins or ends the model.
  bool repeats(const PipelineShape& shape, std::int32_t stage) const {
    bool same = stage > 1 && stage + 1 < shape.stages;
    for (std::int32_t c = 0; same && c < shape.chunks; ++c)
      same = of_chunk(of_part_, shape, {stage, c}) == of_chunk(of_part_, shape, {stage - 1, c});
    return same;
  }

 private:
  struct Lowered {
    ChunkContent content;
    Schedule schedule;
    ChunkMemory memory{schedule};
  };
  std::deque<Lowered> lowered_;  // the first `distinct_` are this plan's
  std::size_t distinct_ = 0;
  std::vector<std::size_t> of_part_;
};

namespace {

/// Passes of a chunk in its place, with what they receive and send.
class PassesOfChunk {
 public:
  PassesOfChunk(const PipelineShape& shape, ChunkPlace at, ChunkMemory& memory)
      : shape_(shape), at_(at), memory_(memory) {}

  const MemoryChange& of(const Action& action) {
    const ChunkSection which = section_of(action, shape_.passes());
    std::optional<MemoryChange>& known =
        known_[static_cast<std::size_t>(action.kind)][static_cast<std::size_t>(which)];
    if (!known) known = change_of(action.kind, which);
    return *known;
  }

 private:
  MemoryChange change_of(PassKind kind, ChunkSection which) {
    const PassEnds ends = ends_of(shape_, at_, kind);
    MemoryChange change;
    if (ends.from) change.add(memory_.of(ends.receive));
    change.add(memory_.of(which, part_of(kind)));
    if (ends.to) change.add(memory_.of(ends.send));
    return change;
  }

  static constexpr std::size_t kPasses = static_cast<std::size_t>(ChunkSection::kLastBackward) + 1;
  const PipelineShape& shape_;
  ChunkPlace at_;
  ChunkMemory& memory_;
  std::array<std::array<std::optional<MemoryChange>, kPasses>, 4> known_;
};

/// What a stage holds for the step, and what it does one after the other.
template <typename Chunks>
class StageSteps {
 public:
  StageSteps(const PipelineShape& shape, std::int32_t stage, Chunks& chunks, Bytes message_bytes) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      for (const PersistentTensor& tensor : chunks.of(shape, {stage, c}).schedule().persistent)
        hold(tensor);
    }
    // Buffers of what arrives beside the tensor that is computed with.
    held_.add(MemoryCategory::kWorkspace, message_bytes * (shape.interleaves() ? shape.stages : 2));
    const auto rest = [&](ChunkSection section) {
      for (std::int32_t c = 0; c < shape.chunks; ++c)
        steps_.push_back(&chunks.of(shape, {stage, c}).of(section));
    };
    rest(ChunkSection::kPrepare);
    for (std::int32_t c = 0; c < shape.chunks; ++c)
      passes_.emplace_back(shape, ChunkPlace{stage, c}, chunks.of(shape, {stage, c}));
    for (const Action& action : stage_actions(shape, stage))
      steps_.push_back(&passes_[static_cast<std::size_t>(action.chunk)].of(action));
    rest(ChunkSection::kTiedSum);
    rest(ChunkSection::kUpdate);
  }

  MemoryLevel most() const {
    Bytes now = 0, most = 0;
    std::size_t fullest = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (now + steps_[i]->most.bytes > most) {
        most = now + steps_[i]->most.bytes;
        fullest = i;
      }
      now += steps_[i]->net.bytes;
    }
    MemoryLevel level = held_;
    for (std::size_t i = 0; i < fullest; ++i) level.add(steps_[i]->net);
    level.add(steps_[fullest]->most);
    return level;
  }

 private:
  void hold(const PersistentTensor& tensor) {
    Bytes more = tensor.bytes;
    if (tensor.kind == Persistent::kWorkspace) {
      more = std::max<Bytes>(0, tensor.bytes - workspace_bytes_);  // chunks share it
      workspace_bytes_ += more;
    }
    held_.add(tensor.category(), more);
  }

  MemoryLevel held_;
  std::deque<PassesOfChunk> passes_;
  std::vector<const MemoryChange*> steps_;
  Bytes workspace_bytes_ = 0;
};

}  // namespace

StageMemory::StageMemory(const Model& model, const profiles::Profile& profile,
                         ProgramCache& programs)
    : model_(model), profile_(profile), programs_(programs), chunks_(std::make_unique<Chunks>()) {}
StageMemory::~StageMemory() = default;

MemoryLevel static_level(const Schedule& schedule, MemoryLevel level) {
  level.add(MemoryCategory::kWorkspace, static_memory_bytes(schedule) - level.bytes);
  return level;
}

std::vector<MemoryLevel> StageMemory::least_levels(const Plan& plan,
                                                   const std::vector<ChunkContent>& parts,
                                                   Stages which) {
  return parts.size() > 1 ? levels_of_passes(plan, parts, which) : levels(plan, parts);
}

std::vector<MemoryLevel> StageMemory::levels(const Plan& plan,
                                             const std::vector<ChunkContent>& parts, Bytes most) {
  if (profile_.stack.memory == MemoryManager::kStatic) {
    write_step(model_, plan, profile_.stack, profile_.cluster, programs_.at(plan), scratch_);
    std::vector<MemoryLevel> levels;
    for (const Schedule& stage : scratch_.stages) {
      levels.push_back(static_level(stage, allocated_peak(stage).level));
      if (levels.back().bytes > most) break;
    }
    return levels;
  }
  if (parts.size() > 1) return levels_of_passes(plan, parts, Stages::kAll);
  scratch_.stages.resize(1);
  Schedule& schedule = scratch_.stages.front();
  lower_chunk(model_, plan, profile_.stack, profile_.cluster, programs_.memory_at(plan),
              parts.front(), schedule, ChunkUse::kMemory);
  return {allocated_peak(schedule).level};
}

std::vector<MemoryLevel> StageMemory::levels_of_passes(const Plan& asked,
                                                       const std::vector<ChunkContent>& parts,
                                                       Stages which) {
  const PipelineShape shape = shortened(pipeline_shape(asked));
  const Plan plan = plan_of_chunk(asked, shape);
  // Where weight gradients are put off their operands say what stays for them.
  const bool splits = shape.info().splits_backward;
  const LayerPrograms& programs = splits ? programs_.at(asked) : programs_.memory_at(asked);
  chunks_->lower(model_, plan, profile_, programs, parts,
                 splits ? ChunkUse::kWalked : ChunkUse::kMemory);
  std::vector<MemoryLevel> stages;
  const bool skips = which == Stages::kFullest && shape.info().memory_falls;
  // Static memory has slots for messages that are under way, which are alive then.
  const bool has_slots = profile_.stack.memory == MemoryManager::kStatic;
  const Bytes message_bytes = has_slots ? 0 : programs.bytes_of(Tensor::kX);
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    if (skips && chunks_->repeats(shape, s)) continue;
    stages.push_back(StageSteps(shape, s, *chunks_, message_bytes).most());
  }
  return stages;
}

Bytes StageMemory::held_bytes(const Plan& asked, const std::vector<ChunkContent>& parts) {
  Plan plan = without_recomputation(asked);
  if (!held_ || held_->plan != plan) {
    const Bytes bytes = fullest_held_bytes(asked, parts);
    held_ = {std::move(plan), bytes};
  }
  return held_->bytes;
}

Bytes StageMemory::fullest_held_bytes(const Plan& asked, const std::vector<ChunkContent>& parts) {
  const PipelineShape shape = pipeline_shape(asked);
  const Plan plan = plan_of_chunk(asked, shape);
  std::vector<Bytes> held;
  scratch_.stages.resize(1);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const auto known = static_cast<std::size_t>(
        std::find_if(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(part),
                     [&](const ChunkContent& other) { return alike(parts[part], other); }) -
        parts.begin());
    held.push_back(known < part ? held[known]
                                : sim::held_bytes(model_, plan, profile_.stack, profile_.cluster,
                                                  parts[part], scratch_.stages.front()));
  }
  Bytes most = 0;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    Bytes of_stage = 0;
    for (std::int32_t c = 0; c < shape.chunks; ++c) of_stage += of_chunk(held, shape, {s, c});
    most = std::max(most, of_stage);
  }
  return most;
}

namespace {

MemoryChange change_of(const Schedule& schedule, const Section& section, PassPart part) {
  MemoryChange change;
  std::vector<MemoryAction> actions;
  for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count; ++b) {
    const Block& block = schedule.blocks[b];
    const BlockPart here(schedule, block, part);
    actions.clear();
    for (std::uint32_t i = 0; i < block.action_count; ++i)
      here.add_to(actions, schedule.memory[block.first_action + i]);
    if (part != PassPart::kAll) {
      std::stable_sort(
          actions.begin(), actions.end(),
          [](const MemoryAction& one, const MemoryAction& other) { return one.op < other.op; });
    }
    const auto look = [&change] {
      if (change.net.bytes > change.most.bytes) change.most = change.net;
    };
    follow_repeats(block.repeats, change.net, [&](std::int32_t) {
      for (const MemoryAction& action : actions) {
        if (!action.acquire) look();  // nothing is higher before it falls
        change.net.add(action);
      }
      look();
    });
  }
  return change;
}

}  // namespace

const MemoryChange& ChunkMemory::of(ChunkSection section, PassPart part) {
  const auto which = static_cast<std::size_t>(section);
  std::optional<MemoryChange>& known = known_[which][static_cast<std::size_t>(part)];
  if (!known) known = change_of(*schedule_, schedule_->sections[which], part);
  return *known;
}

}  // namespace shardwright::sim
