// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/places_free.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/core/arena.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/memory_actions.h"
#include "sim/core/message_queue.h"
#include "sim/core/placement.h"

namespace shardwright::sim {
namespace {

/// Of a stream: how many of its operations have begun.
using Count = std::uint32_t;

struct Location {
  Bytes begin = 0, end = 0;
  std::int32_t slot = -1;
};

/// An operation of a stream that was somewhere.
struct Touch {
  Count count = 0;
  std::uint32_t op = 0;  // of the step
  Bytes begin = 0, end = 0;
  Tensor tensor = Tensor::kNone;
  bool writes = false;
};

class PlaceWalk {
 public:
  PlaceWalk(const Schedule& schedule, std::int32_t stage)
      : schedule_(schedule),
        arena_(plan_arena(schedule)),
        placement_(schedule, 0),
        numbers_(schedule),
        streams_(schedule.streams.size()) {
    std::map<std::pair<MessageQueue, bool>, std::size_t> queues;
    for (const Op& op : schedule.ops) {
      std::size_t stream = op.stream;
      if (op.peer >= 0) {
        const bool sends = op.kind == OpKind::kSend;
        const auto [at, fresh] = queues.try_emplace({queue_of(op, stage), sends}, streams_);
        if (fresh) ++streams_;
        stream = at->second;
      }
      stream_of_.push_back(stream);
    }
    host_ = streams_++;
    comes_to_.fill(std::vector<bool>(streams_, false));
    for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
      const Op& op = schedule.ops[i];
      const bool passes_on = op.peer >= 0 && op.phase == Phase::kPrepare;
      comes_to_[kSlots][stream_of_[i]] = true;
      if (passes_on) continue;
      comes_to_[kPersistent][stream_of_[i]] = true;
      if (op.in[0] || op.out[0]) comes_to_[kActivations][stream_of_[i]] = true;
    }
    clocks_.assign(streams_ * streams_, 0);
    seen_host_.assign(streams_, 0);
    const auto units = static_cast<std::size_t>(schedule.units());
    events_.assign(schedule.event_names.size() * units * streams_, 0);
    slots_.assign(static_cast<std::size_t>(arena_.message_slots) * streams_, 0);
    touches_.resize((kSlots + static_cast<std::size_t>(arena_.message_slots)) * streams_);
    places_.resize(numbers_.size());
    for (const Block& block : schedule.blocks) {
      for (const Op& op : schedule.ops_of(block)) {
        if (op.kind == OpKind::kCastShard) casts_.push_back(block.first_unit);
      }
    }
    casts_.push_back(schedule.units());
    std::sort(casts_.begin(), casts_.end());
  }

  std::optional<std::string> run() {
    MemoryActions actions(schedule_);
    for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
      if (!fault_) visit(at, op, actions.of(at));
    });
    if (!fault_) return std::nullopt;
    return fmt::format("{} may touch {} while {} does", said(fault_->second.op),
                       place_name(*fault_), said(fault_->first.op));
  }

 private:
  /// Parts of memory whose touches are told apart: parameters and gradients, activations, and each
  /// message's slot.
  enum : std::size_t { kPersistent, kActivations, kSlots };

  Count* clock(std::size_t stream) { return &clocks_[stream * streams_]; }
  void merge(Count* into, const Count* from) const {
    for (std::size_t i = 0; i < streams_; ++i) into[i] = std::max(into[i], from[i]);
  }
  void copy(const Count* from, Count* to) const { std::copy_n(from, streams_, to); }

  Count* event(const EventRef& ref, std::int32_t unit) {
    const std::int32_t at = unit + ref.offset;
    if (!ref || at < 0 || at >= schedule_.units()) return nullptr;
    const auto units = static_cast<std::size_t>(schedule_.units());
    return &events_[(ref.name * units + static_cast<std::size_t>(at)) * streams_];
  }

  void visit(const OpInstance& at, const Op& op, std::span<const MemoryAction> actions) {
    const auto number = static_cast<std::uint32_t>(at.id - schedule_.first_id);
    const std::size_t stream = op.host_waits ? host_ : stream_of_[at.op];
    Count* const mine = clock(stream);
    if (seen_host_[stream] != clock(host_)[host_]) {
      merge(mine, clock(host_));
      seen_host_[stream] = clock(host_)[host_];
    }
    for (const EventRef& wait : op.waits) {
      if (const Count* recorded = event(wait, at.unit)) merge(mine, recorded);
    }
    std::uint32_t acquired = 0;
    for (const MemoryAction& action : actions) {
      if (!action.acquire || action.bytes == 0) continue;
      Location& place = places_[numbers_.of(at, action.tensor, action.offset)];
      place = place_of(at, number, action, acquired++);
      if (place.slot >= 0) merge(mine, slot(place.slot));
    }
    touch_ = {++mine[stream], number};
    touch_activations(at, op, stream);
    touch_persistent(at, op, stream);
    for (const MemoryAction& action : actions) {
      if (action.acquire || action.bytes == 0 || action.offset == kAllUnits) continue;
      const std::size_t tensor = numbers_.of(at, action.tensor, action.offset);
      const std::int32_t left = tensor == TensorNumbers::kNone ? -1 : places_[tensor].slot;
      if (left >= 0) copy(mine, slot(left));
    }
    if (Count* recorded = event(op.record, at.unit)) copy(mine, recorded);
  }

  Count* slot(std::int32_t slot) { return &slots_[static_cast<std::size_t>(slot) * streams_]; }

  Location place_of(const OpInstance& at, std::uint32_t number, const MemoryAction& action,
                    std::uint32_t ordinal) const {
    ArenaPlan::PassPlace where;
    if (arena_.passes.empty()) {
      const auto index = static_cast<std::size_t>(&action - schedule_.memory.data());
      where.offset = arena_.offset(schedule_, index, at.unit);
    } else {
      where = arena_.passes[arena_.first_of_op[number] + ordinal];
    }
    return {where.offset, where.offset + action.bytes, where.slot};
  }

  void touch_activations(const OpInstance& at, const Op& op, std::size_t stream) {
    // Kernels may work in place; products and what sends do not.
    const bool in_place =
        op.work.kind == WorkKind::kCollective ? !op.out[0] : op.work.kind != WorkKind::kGemm;
    const auto touch = [&](Tensor tensor, std::int32_t offset, bool writes) {
      const std::size_t number = numbers_.of(at, tensor, offset);
      if (number == TensorNumbers::kNone) return;
      const Location& place = places_[number];
      if (place.begin == place.end) return;
      const std::size_t part =
          place.slot < 0 ? kActivations : kSlots + static_cast<std::size_t>(place.slot);
      touch_.tensor = tensor;
      this->touch(part, place.begin, place.end, writes, stream);
    };
    for (const Operand& in : op.in) {
      if (!in) break;
      touch(in.tensor, in.offset, in_place && op.kind != OpKind::kSend);
    }
    for (const Operand& out : op.out) {
      if (!out) break;
      touch(out.tensor, out.offset, true);
    }
    if (op.temporary_bytes > 0) touch(Tensor::kTemporary, 0, true);
  }

  void touch_persistent(const OpInstance& at, const Op& op, std::size_t stream) {
    const auto touch = [&](Tensor tensor, const PlacedArray& array, bool writes) {
      if (array.size == 0 || !array) return;
      touch_.tensor = tensor;
      this->touch(kPersistent, array.offset, array.offset + array.size * bytes_of(array.dtype),
                  writes, stream);
    };
    if (op.kind == OpKind::kGradientNorm || op.kind == OpKind::kOptimizer) {
      touch_.tensor = Tensor::kOptimizerTemporary;
      return this->touch(kPersistent, 0, placement_.size_bytes(), true, stream);
    }
    const auto unit_of = [&](std::int32_t unit) -> const UnitPlacement& {
      return placement_.unit(unit);
    };
    if (op.kind == OpKind::kCastShard) {
      const std::int32_t end = *std::upper_bound(casts_.begin(), casts_.end(), at.unit);
      for (std::int32_t u = at.unit; u < end; ++u) {
        touch(Tensor::kCastedShard, unit_of(u).owned_source, true);
        touch(Tensor::kCastedShard, unit_of(u).owned_master, false);
      }
      return;
    }
    if (op.weight == Weight::kHead && (op.peer >= 0 || op.phase == Phase::kReduce)) {
      const bool adds = op.peer < 0;
      touch(Tensor::kShardGradient, unit_of(at.unit).gradient_sum, adds);
      if (adds && !op.in[0])
        touch(Tensor::kShardGradient, unit_of(schedule_.head_unit()).gradient_sum, false);
      return;
    }
    if (op.weight != Weight::kNone || op.in[0].tensor == Tensor::kNormGradients)
      return touch_weight(at, op, touch);
    const std::int32_t target = schedule_.target(op, at.unit);
    const bool is_sharding = !op.collective && !op.in[0] && !op.out[0];
    if (!is_sharding || target < 0 || target >= schedule_.units()) return;
    const UnitPlacement& unit = unit_of(target);
    switch (op.kind) {
      case OpKind::kAllGather:
        touch(Tensor::kCastedShard, unit.owned_source, false);
        return touch(Tensor::kGathered, unit.parameters, true);
      case OpKind::kCastGradient:
      case OpKind::kCopyIn:
      case OpKind::kAccumulate:
        if (op.kind == OpKind::kAccumulate && schedule_.sharding.shards != Sharded::kNothing)
          return;
        touch(Tensor::kFlatGradient, unit.gradient, false);
        return touch(Tensor::kReduceInput, unit.reduced, true);
      case OpKind::kReduceScatter:
        touch(Tensor::kReduceInput, unit.reduced, false);
        touch(Tensor::kReduceOutput, unit.scratch, true);
        return touch(Tensor::kShardGradient, unit.gradient_sum, true);
      case OpKind::kAllReduce:
        return touch(Tensor::kShardGradient, unit.gradient_sum, true);
      default:
        return;
    }
  }

  /// What an operation of the model reads of its unit's parameters, and writes of their gradients.
  template <class Touch>
  void touch_weight(const OpInstance& at, const Op& op, const Touch& touch) {
    std::int32_t unit = at.unit;
    const bool is_norm = op.kind == OpKind::kNorm || op.kind == OpKind::kQkNorm ||
                         op.in[0].tensor == Tensor::kNormGradients;
    if (is_norm && schedule_.sharding.separates_norms) unit = schedule_.norm_unit();
    const std::int32_t of_gradient =
        schedule_.unit_sizes.head_gradient > 0 && at.unit == schedule_.head_unit() ? at.unit : unit;
    const auto held = [&](std::int32_t u) { return schedule_.unit_elements(u) > 0 ? u : 0; };
    const bool makes_only_gradient = op.kind == OpKind::kWeightGradient ||
                                     op.kind == OpKind::kAccumulate ||
                                     op.kind == OpKind::kAllReduce;
    if (!makes_only_gradient)
      touch(Tensor::kGathered, placement_.unit(held(unit)).parameters, false);
    const bool makes_gradient = makes_only_gradient || (op.phase == Phase::kBackward &&
                                                        (is_norm || op.kind == OpKind::kEmbedding));
    if (!makes_gradient) return;
    const std::optional<Action>& pass = schedule_.sections[at.section].pass;
    const UnitPlacement& placed = placement_.unit(of_gradient == unit ? held(unit) : of_gradient);
    const bool first = pass ? pass->micro_batch == 0 : at.micro_step <= first_backward(at);
    touch(Tensor::kFlatGradient, first ? placed.first_gradient : placed.gradient, true);
  }

  /// The micro-step of the first backward pass, which begins sums.
  std::int32_t first_backward(const OpInstance& at) {
    if (first_backward_ < 0) first_backward_ = at.micro_step;
    return first_backward_;
  }

  void touch(std::size_t part, Bytes begin, Bytes end, bool writes, std::size_t stream) {
    touch_.begin = begin;
    touch_.end = end;
    touch_.writes = writes;
    const Count* const mine = clock(stream);
    std::vector<Touch>* const all = &touches_[part * streams_];
    for (std::size_t other = 0; other < streams_; ++other) {
      if (other == stream || all[other].empty()) continue;
      for (auto past = all[other].rbegin(); past != all[other].rend(); ++past) {
        if (past->count <= mine[other]) break;
        const bool meets = past->begin < end && begin < past->end;
        if (!meets || !(writes || past->writes) || fault_) continue;
        fault_ = {*past, touch_};
      }
    }
    std::vector<Touch>& own = all[stream];
    if (own.size() == kKept) forget(part, stream, own);
    own.push_back(touch_);
  }

  /// What every stream that may come there has seen.
  void forget(std::size_t part, std::size_t stream, std::vector<Touch>& touches) {
    Count seen = clock(stream)[stream];
    for (std::size_t other = 0; other < streams_; ++other) {
      if (other != stream && comes_to_[std::min<std::size_t>(part, kSlots)][other])
        seen = std::min(seen, clock(other)[stream]);
    }
    std::erase_if(touches, [seen](const Touch& touch) { return touch.count <= seen; });
  }

  std::string said(std::uint32_t number) const {
    std::string text;
    for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
      if (at.id - schedule_.first_id != number) return;
      text = describe(schedule_, at);
      const std::optional<Action>& pass = schedule_.sections[at.section].pass;
      if (pass) text += fmt::format(" of micro-batch {}", pass->micro_batch);
      text += fmt::format(" on stream {}", schedule_.streams[op.stream].name);
    });
    return text;
  }

  static std::string place_name(const std::pair<Touch, Touch>& two) {
    const std::string_view before = name_of(two.first.tensor), after = name_of(two.second.tensor);
    if (before == after) return fmt::format("'{}'", after);
    return fmt::format("'{}' where '{}' lies", after, before);
  }

  static constexpr std::size_t kKept = 256;

  const Schedule& schedule_;
  ArenaPlan arena_;
  Placement placement_;
  TensorNumbers numbers_;
  std::size_t streams_;  // and the host
  std::size_t host_ = 0;
  std::vector<std::size_t> stream_of_;         // by operation of the schedule
  std::array<std::vector<bool>, 3> comes_to_;  // a part of memory, by stream
  std::vector<Count> clocks_;                  // what each stream has seen of each
  std::vector<Count> seen_host_;
  std::vector<Count> events_, slots_;  // clocks, too
  std::vector<Location> places_;       // of tensors, by their numbers
  std::vector<std::int32_t> casts_;
  std::vector<std::vector<Touch>> touches_;  // by part of memory and stream
  std::int32_t first_backward_ = -1;
  Touch touch_;
  std::optional<std::pair<Touch, Touch>> fault_;
};

}  // namespace

std::optional<std::string> find_taken_place(const Schedule& schedule, std::int32_t stage) {
  // Without passes every micro-batch has the places of the one before.
  Schedule few = schedule;
  for (Section& section : few.sections) {
    if (!section.pass) section.repeats = std::min(section.repeats, 2);
  }
  return PlaceWalk(few, stage).run();
}

void check_places_free(const std::vector<Schedule>& stages) {
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto number = static_cast<std::int32_t>(stage);
    const std::optional<std::string> taken = find_taken_place(stages[stage], number);
    if (!taken) continue;
    throw Error(
        stages.size() == 1
            ? fmt::format("a step of this plan would train on overwritten values: {}", *taken)
            : fmt::format("stage {} of this pipeline would train on overwritten values: {}", stage,
                          *taken));
  }
}

StepProgram proven_step(const Model& model, const Plan& plan, const Stack& native,
                        std::int64_t gpus_per_node) {
  check_run(plan, model);
  check_plan(with_products_in_bf16(plan), model, gpus_per_node);
  StepProgram step = executed_step(model, plan, native, gpus_per_node);
  check_places_free(step.stages);
  return step;
}

}  // namespace shardwright::sim
