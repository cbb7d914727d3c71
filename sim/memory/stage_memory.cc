// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/stage_memory.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/placement.h"
#include "sim/pipeline/step_program.h"
#include "sim/schedules/stage_actions.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

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

/// A step of a stage as a number: which chunk's, and a pass of what kind in which section, or a
/// section beside the passes.
constexpr std::size_t kPassSections = static_cast<std::size_t>(ChunkSection::kLastBackward) + 1;
constexpr std::size_t kPassCodes = 4 * kPassSections;
constexpr std::array kBeside = {ChunkSection::kPrepare, ChunkSection::kTiedSum,
                                ChunkSection::kUpdate};
constexpr std::size_t kCodes = kPassCodes + kBeside.size();

/// What a stage does one after the other, and each step of it once.
struct StageOrder {
  std::vector<std::uint16_t> steps, distinct;
};

StageOrder order_of(const PipelineShape& shape, std::int32_t stage) {
  StageOrder order;
  const auto chunks = static_cast<std::size_t>(shape.chunks);
  const auto rest = [&](std::size_t beside) {
    for (std::size_t c = 0; c < chunks; ++c)
      order.steps.push_back(static_cast<std::uint16_t>(c * kCodes + kPassCodes + beside));
  };
  rest(0);
  for (const Action& action : stage_actions(shape, stage)) {
    const auto section = static_cast<std::size_t>(section_of(action, shape.passes()));
    const auto kind = static_cast<std::size_t>(action.kind);
    order.steps.push_back(static_cast<std::uint16_t>(
        static_cast<std::size_t>(action.chunk) * kCodes + kind * kPassSections + section));
  }
  for (std::size_t beside = 1; beside < kBeside.size(); ++beside) rest(beside);
  std::vector<bool> known(chunks * kCodes);
  for (const std::uint16_t step : order.steps) {
    if (!known[step]) order.distinct.push_back(step);
    known[step] = true;
  }
  return order;
}

MemoryChange change_of(const PipelineShape& shape, ChunkPlace at, ChunkMemory& memory,
                       std::size_t code) {
  if (code >= kPassCodes) return memory.of(kBeside[code - kPassCodes]);
  const auto kind = static_cast<PassKind>(code / kPassSections);
  const PassEnds ends = ends_of(shape, at, kind);
  MemoryChange change;
  if (ends.from) change.add(memory.of(ends.receive));
  change.add(memory.of(static_cast<ChunkSection>(code % kPassSections), part_of(kind)));
  if (ends.to) change.add(memory.of(ends.send));
  return change;
}

}  // namespace

/// What stages do, of the last pipeline that was asked about, and what the steps of one change.
class StageMemory::Steps {
 public:
  void of(const PipelineShape& shape) {
    if (shape == shape_) return;
    shape_ = shape;
    orders_.clear();
    for (std::int32_t s = 0; s < shape.stages; ++s) orders_.push_back(order_of(shape, s));
  }

  MemoryLevel fullest(std::int32_t stage, Chunks& chunks, Bytes message_bytes) {
    const StageOrder& order = orders_[static_cast<std::size_t>(stage)];
    changes_.resize(static_cast<std::size_t>(shape_.chunks) * kCodes);
    for (const std::uint16_t step : order.distinct) {
      const ChunkPlace at{stage, static_cast<std::int32_t>(step / kCodes)};
      changes_[step] = {change_of(shape_, at, chunks.of(shape_, at), step % kCodes), 0};
    }
    Bytes now = 0, most = 0;
    std::size_t fullest = 0;
    for (std::size_t i = 0; i < order.steps.size(); ++i) {
      const MemoryChange& change = changes_[order.steps[i]].change;
      if (now + change.most.bytes > most) {
        most = now + change.most.bytes;
        fullest = i;
      }
      now += change.net.bytes;
    }
    for (std::size_t i = 0; i < fullest; ++i) ++changes_[order.steps[i]].times;
    MemoryLevel level = held(stage, chunks, message_bytes);
    for (const std::uint16_t step : order.distinct)
      level.add(changes_[step].change.net, changes_[step].times);
    level.add(changes_[order.steps[fullest]].change.most);
    return level;
  }

 private:
  struct Step {
    MemoryChange change;
    std::int64_t times = 0;  // before the stage is at its fullest
  };

  /// For the whole step.
  MemoryLevel held(std::int32_t stage, Chunks& chunks, Bytes message_bytes) const {
    MemoryLevel held;
    Bytes workspace_bytes = 0;
    for (std::int32_t c = 0; c < shape_.chunks; ++c) {
      for (const PersistentTensor& tensor : chunks.of(shape_, {stage, c}).schedule().persistent) {
        Bytes more = tensor.bytes;
        if (tensor.kind == Persistent::kWorkspace) {
          more = std::max<Bytes>(0, tensor.bytes - workspace_bytes);  // chunks share it
          workspace_bytes += more;
        }
        held.add(tensor.category(), more);
      }
    }
    // Buffers of what arrives beside the tensor that is computed with.
    held.add(MemoryCategory::kWorkspace,
             message_bytes * (shape_.interleaves() ? shape_.stages : 2));
    return held;
  }

  PipelineShape shape_{.stages = 0};
  std::vector<StageOrder> orders_;
  std::vector<Step> changes_;
};

StageMemory::StageMemory(const Model& model, const profiles::Profile& profile,
                         ProgramCache& programs)
    : model_(model),
      profile_(profile),
      programs_(programs),
      chunks_(std::make_unique<Chunks>()),
      steps_(std::make_unique<Steps>()) {}
StageMemory::~StageMemory() = default;

MemoryLevel static_level(const Schedule& schedule, MemoryLevel level) {
  level.add(MemoryCategory::kWorkspace, static_memory_bytes(schedule) - level.bytes);
  return level;
}

std::vector<MemoryLevel> StageMemory::least_levels(const Plan& plan,
                                                   const std::vector<ChunkContent>& parts,
                                                   Stages which, Bytes most) {
  return parts.size() > 1 ? levels_of_passes(plan, parts, which, most) : levels(plan, parts);
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
  if (parts.size() > 1) return levels_of_passes(plan, parts, Stages::kAll, kUnlimited);
  scratch_.stages.resize(1);
  Schedule& schedule = scratch_.stages.front();
  lower_chunk(model_, plan, profile_.stack, profile_.cluster, programs_.memory_at(plan),
              parts.front(), schedule, ChunkUse::kMemory);
  return {allocated_peak(schedule).level};
}

std::vector<MemoryLevel> StageMemory::levels_of_passes(const Plan& asked,
                                                       const std::vector<ChunkContent>& parts,
                                                       Stages which, Bytes most) {
  PipelineShape shape = pipeline_shape(asked);
  shape.micro_batches = static_cast<std::int32_t>(telling_micro_batches(asked));
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
  steps_->of(shape);
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    if (skips && chunks_->repeats(shape, s)) continue;
    stages.push_back(steps_->fullest(s, *chunks_, message_bytes));
    if (stages.back().bytes > most) break;
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
  std::vector<MemoryAction> of_part;
  for (const Block& block : schedule.blocks_of(section)) {
    std::span<const MemoryAction> actions = schedule.actions_of(block);
    if (part != PassPart::kAll) {
      const BlockPart here(schedule, block, part);
      of_part.clear();
      for (const MemoryAction& action : actions) here.add_to(of_part, action);
      std::stable_sort(
          of_part.begin(), of_part.end(),
          [](const MemoryAction& one, const MemoryAction& other) { return one.op < other.op; });
      actions = of_part;
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
