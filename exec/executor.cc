// SPDX-License-Identifier: Apache-2.0
#include "exec/executor.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "exec/host/stream_clocks.h"
#include "sim/core/base/check.h"
#include "sim/core/base/numbers.h"
#include "sim/core/executed_plan.h"

namespace shardwright::exec {

namespace {

Schedule checked(Schedule schedule, const Model& model, const Plan& plan,
                 const RankGroups& groups) {
  check_run(plan, model);
  SHARDWRIGHT_CHECK(schedule.world_ranks() == groups.world->size() &&
                        schedule.shard_ranks() == groups.shard->size() &&
                        schedule.replicate_ranks() == groups.replicate->size(),
                    "a schedule for {} = {} x {} ranks, groups of {} = {} x {}",
                    schedule.world_ranks(), schedule.shard_ranks(), schedule.replicate_ranks(),
                    groups.world->size(), groups.shard->size(), groups.replicate->size());
  SHARDWRIGHT_CHECK(plan.parallel.tp == (groups.tensor ? groups.tensor->size() : 1) &&
                        plan.parallel.pp == (groups.pipeline ? groups.pipeline->size() : 1),
                    "no groups of the {} tensor ranks and {} stages", plan.parallel.tp,
                    plan.parallel.pp);
  return schedule;
}

/// OpInstance::micro_step of the first micro-batch: the prologue counts as one.
std::int32_t first_micro_step(const Schedule& schedule) {
  std::int32_t micro_step = 0;
  for (const Section& section : schedule.sections) {
    if (section.pass) return 0;  // passes say it themselves
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      if (schedule.blocks[b].phase == Phase::kForward) return micro_step;
    }
    micro_step += section.repeats;
  }
  return micro_step;
}

std::int64_t count_ops(const Schedule& schedule) {
  std::int64_t count = 0;
  for_each_op(schedule, [&](const OpInstance&, const Op&) { ++count; });
  return count;
}

Bytes logits_bytes(const Schedule& schedule) {
  for (const MemoryAction& action : schedule.memory) {
    if (action.tensor == Tensor::kLogits) return action.bytes;
  }
  return 0;
}

/// The head's operations that run chunk by chunk of tokens: up to its weight gradient.
std::uint32_t count_head_ops(const Schedule& schedule) {
  std::uint32_t first = 0;
  for (std::uint32_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (op.kind == OpKind::kHeadProjection) first = i;
    if (op.kind == OpKind::kWeightGradient && op.weight == Weight::kHead) return i + 1 - first;
  }
  return 0;
}

/// A place in a stream where something waits or is waited for, and no work.
bool is_mark(const Op& op) {
  const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kReceive;
  return op.kind == OpKind::kHostWork || (is_message && op.peer < 0);
}

/// The units that casts of masters begin with: each reaches to the next one, as far as its chunk.
std::set<std::int32_t> find_casts(const Schedule& schedule) {
  std::set<std::int32_t> first_units;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    if (op.kind == OpKind::kCastShard) first_units.insert(at.unit);
  });
  return first_units;
}

/// Ranks that own everything once between them.
std::vector<std::int64_t> find_counting_ranks(const RankMesh& mesh) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < mesh.ranks; ++rank) {
    if (mesh.members(CommGroup::kReplicate, rank).front() == rank) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<StreamId> make_streams(const Schedule& schedule, Device& device) {
  std::vector<StreamId> streams;
  for (const Stream& stream : schedule.streams) {
    streams.push_back(device.make_stream(stream.name, stream.priority));
  }
  return streams;
}

std::vector<StreamId> find_op_streams(const Schedule& schedule,
                                      const std::vector<StreamId>& streams,
                                      const RankGroups& groups) {
  std::vector<StreamId> found;
  for (const Op& op : schedule.ops) {
    const StreamId stream = streams[op.stream];
    found.push_back(op.peer < 0 ? stream
                                : groups.pipeline->message_stream(stream, op.peer, op.channel,
                                                                  op.kind == OpKind::kSend));
  }
  return found;
}

}  // namespace

Executor::Executor(const Model& model, const Plan& plan, Schedule schedule, Device& device,
                   RankGroups groups, const ExecutorOptions& options)
    : model_(model),
      plan_(plan),
      schedule_(checked(std::move(schedule), model, plan, groups)),
      mesh_(plan_, schedule_.shard_ranks()),
      place_(mesh_.place_of(groups.world->rank())),
      counting_ranks_(find_counting_ranks(mesh_)),
      device_(device),
      groups_(std::move(groups)),
      options_(options),
      layout_(model, schedule_, plan_.parallel, place_),
      memory_(schedule_, groups_.shard->rank(), device),
      sharding_(schedule_, layout_, memory_.placement(), memory_.persistent(),
                groups_.shard->rank()),
      activations_(schedule_, memory_.arena(), memory_.activations()),
      workspace_(model_, plan_, memory_.persistent(Persistent::kWorkspace)),
      streams_(make_streams(schedule_, device)),
      op_streams_(find_op_streams(schedule_, streams_, groups_)),
      head_ops_(count_head_ops(schedule_)),
      model_ops_(model_, plan_, sharding_, activations_, workspace_, device, streams_, groups_,
                 place_),
      recorder_(device,
                options.trace
                    ? static_cast<std::size_t>(count_ops(schedule_) +
                                               head_ops_ * plan_.grad_accum *
                                                   model_ops_.head_chunks(logits_bytes(schedule_)))
                    : 0,
                groups_.world->rank(), options.tracer),
      poison_(schedule_, sharding_, options.poison),
      first_micro_(first_micro_step(schedule_)),
      cast_units_(find_casts(schedule_)) {
  if (options_.ranges != nullptr) {
    for (const Op& op : schedule_.ops) {
      range_names_.push_back(fmt::format("{} {}", name_of(op.phase), name_of(op.kind)));
    }
  }
  first_action_.resize(schedule_.ops.size());
  for (const Block& block : schedule_.blocks) {
    std::uint32_t action = block.first_action;
    for (std::uint32_t i = 0; i < block.op_count; ++i) {
      while (action < block.first_action + block.action_count && schedule_.memory[action].op < i) {
        ++action;
      }
      first_action_[block.first_op + i] = action;
    }
  }
  const std::size_t names = schedule_.event_names.size();
  const auto units = static_cast<std::size_t>(schedule_.units());
  events_.resize(names * units);
  recorded_ = std::vector<Recorded>(names * units);
  operations_ = count_ops(schedule_);
  last_prepare_ = first_micro_;
  if (plan_.parallel.pp > 1)
    last_prepare_ = static_cast<std::int32_t>(plan_.parallel.virtual_stages) + 1;
  for (std::int32_t i = 0; i < memory_.arena().message_slots; ++i)
    slots_.push_back(device_.make_event());
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (!op.record) return;
    const std::int32_t unit = at.unit + op.record.offset;
    std::unique_ptr<Event>& made = events_[op.record.name * units + static_cast<std::size_t>(unit)];
    if (!made) made = device_.make_event();
  });
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    std::vector<UpdateSegment>& segments = segments_.emplace_back();
    std::vector<Run>& counted = counted_.emplace_back();
    for (const OwnedPart& part : layout_.owned(u, sharding_.shard_rank())) {
      const ParameterTensor& tensor = layout_.tensor(part.tensor);
      UpdateSegment& segment = segments.emplace_back();
      segment.offset = part.share_offset;
      segment.count = part.count();
      segment.first_index = tensor.first_index + static_cast<std::uint64_t>(part.tensor_offset);
      segment.decays = tensor.decays;
      if (part.rows > 1) {
        segment.row_length = part.cols;
        segment.row_stride = tensor.row_length();
      }
      if (groups_.replicate->rank() > 0 || !part.counts) continue;
      const bool follows =
          !counted.empty() && counted.back().first + counted.back().count == part.share_offset;
      if (!follows) counted.push_back({part.share_offset, 0});
      counted.back().count += part.count();
    }
  }
  groups_.shard->register_memory(memory_.persistent(), memory_.persistent_bytes());
  memory_.clear(device_, streams_[0]);
  if (options_.poison) {
    device_.poison(streams_[0], memory_.activations(), memory_.arena().size_bytes, DType::kFp32);
  }
  workspace_.initialize(model_, device_, streams_[0]);
  device_.lend_scratch(streams_[0], workspace_.scratch(), workspace_.plan().scratch_bytes);
}

Executor::~Executor() {
  device_.drain();
  groups_.leave();
}

StepResult Executor::step(Batch batch, const StepOptions& options) {
  recorder_.prepare_step(static_cast<std::int32_t>(options.adamw.step));
  const auto begin = std::chrono::steady_clock::now();
  StepTotals totals;
  const Nanoseconds begin_ns =
      begin_walk(batch, plan_.grad_accum, static_cast<std::int32_t>(options.adamw.step));
  finish_work([&] {
    for_each_op(schedule_, [&](const OpInstance& at, const Op& op) { run_op(at, op, options); });
    const StreamClocks::Said no_time(device_.clocks(), streams_[0], 0);
    device_.copy(streams_[0], &totals, workspace_.totals(schedule_.world_ranks()), sizeof totals);
  });
  StepResult result;
  result.loss_sum = totals.loss;
  result.tokens = totals.tokens;
  result.gradient_norm = totals.gradient_norm;
  result.skipped = !std::isfinite(totals.scale);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (device_.clocks() != nullptr) result.seconds = seconds_of(align_clocks() - begin_ns);
  return result;
}

Nanoseconds Executor::align_clocks() {
  StreamClocks* clocks = device_.clocks();
  if (clocks == nullptr) return 0;
  const Nanoseconds mine = clocks->latest();
  std::vector<Nanoseconds> all(static_cast<std::size_t>(groups_.world->size()));
  groups_.world->exchange(std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(all)));
  clocks->wait_for_all(*std::max_element(all.begin(), all.end()));
  return clocks->latest();
}

std::optional<Nanoseconds> Executor::lasts(const OpInstance& at, const Op& op) const {
  return options_.lasts ? options_.lasts(at, op) : std::nullopt;
}

Nanoseconds Executor::begin_walk(Batch& batch, std::int64_t micro_steps, std::int32_t step) {
  // Times count from here, and ranks should mean the same moment.
  if (recorder_.records()) groups_.world->barrier();
  const Nanoseconds begin_ns = align_clocks();
  recorder_.begin_step(step);
  poison_.begin_step();
  micro_step_ = -1;
  updated_.clear();
  begun_.store(0, std::memory_order_relaxed);
  device_.begin_operation(-1);
  for (Recorded& one : recorded_) one.number.store(0, std::memory_order_relaxed);
  finish_work([&] {
    const StreamClocks::Said no_time(device_.clocks(), streams_[0], 0);
    workspace_.upload(batch, micro_steps, device_, streams_[0]);
    device_.zero(streams_[0], workspace_.record(groups_.world->rank()),
                 workspace_.plan().exchange_bytes);
  });
  return begin_ns;
}

void Executor::run_op(const OpInstance& at, const Op& op, const StepOptions& options) {
  begin_op(at);
  const bool is_left_out = rehearses_ && !is_rehearsed(at.micro_step - first_micro_);
  if (is_mark(op)) {
    wait_for(at, op);
    if (!is_left_out) release(at);
    return record_for(at, op);
  }
  if (is_left_out) return;
  if (op.kind == OpKind::kSynchronize) return device_.synchronize();
  const std::int64_t micro_step = std::max(at.micro_step - first_micro_, 0);
  if (micro_step != micro_step_) {
    micro_step_ = micro_step;
    if (micro_step < plan_.grad_accum) model_ops_.begin_micro_step(micro_step);
    if (!slots_.empty()) activations_.set_micro_batch(static_cast<std::int32_t>(micro_step));
  }
  const bool is_head = op.kind == OpKind::kHeadProjection;
  if (!is_head && runs_with_head(at)) return end_op(at, op);  // with the projection
  // The head's operations run together, so what they write is needed now.
  acquire(at, is_head ? head_ops_ - 1 : 0);
  if (!is_head) wait_for(at, op);
  const StreamId stream = stream_of(at.op);
  static const std::string kNone;
  const RangeMarker::Scope range(options_.ranges,
                                 range_names_.empty() ? kNone : range_names_[at.op]);
  if (is_head) {
    run_head(at, true);
  } else {
    const Recorder::Scope scope(recorder_, at.id, stream);
    const StreamClocks::Said said(device_.clocks(), stream, lasts(at, op));
    if (op.peer >= 0) {
      pass_message(at, op);
    } else if (ModelOps::owns(op)) {
      model_ops_.run(op, at.unit);
    } else if (op.phase == Phase::kOptimizer) {
      run_update(op, options);
    } else {
      run_sharding(at, op);
    }
  }
  end_op(at, op);
}

void Executor::end_op(const OpInstance& at, const Op& op) {
  poison_.for_each_dead(at.id, [&](std::int32_t unit) {
    const Array dead = sharding_.unit(unit).parameters.part(0, layout_.unit(unit).elements);
    device_.poison(streams_[op.stream], dead.data, dead.bytes(), dead.dtype);
  });
  release(at);
  record_for(at, op);
}

bool Executor::runs_with_head(const OpInstance& at) const {
  const std::uint32_t first = schedule_.blocks[at.block].first_op;
  for (std::uint32_t i = at.op; i > first && at.op - i + 1 < head_ops_; --i) {
    if (schedule_.ops[i - 1].kind == OpKind::kHeadProjection) return true;
  }
  return false;
}

void Executor::run_head(const OpInstance& at, bool makes_gradients) {
  const auto run_chunk = [&](std::int64_t first, std::int64_t end, std::int64_t tokens) {
    OpInstance here = at;
    for (std::uint32_t i = 0; i < head_ops_; ++i, ++here.op, ++here.id) {
      const Op& op = schedule_.ops[here.op];
      if (!makes_gradients && op.phase == Phase::kBackward) continue;
      wait_for(here, op);
      if (op.kind != OpKind::kHostWork) {
        std::optional<Nanoseconds> part = lasts(here, op);
        if (part) *part = *part * end / tokens - *part * first / tokens;
        const Recorder::Scope scope(recorder_, here.id, streams_[op.stream]);
        const StreamClocks::Said said(device_.clocks(), streams_[op.stream], part);
        model_ops_.run(op, here.unit);
      }
      record_for(here, op);
    }
  };
  model_ops_.for_each_chunk(at.unit, makes_gradients, run_chunk);
}

void Executor::acquire(const OpInstance& at, std::uint32_t more) {
  const Block& block = schedule_.blocks[at.block];
  const std::uint32_t local = at.op - block.first_op;
  std::uint32_t last = ~std::uint32_t{0}, ordinal = 0;  // of an operation's places
  for (std::uint32_t i = first_action_[at.op]; i < block.first_action + block.action_count; ++i) {
    const MemoryAction& action = schedule_.memory[i];
    if (action.op > local + more) break;
    if (!action.acquire || action.bytes == 0) continue;
    ordinal = action.op == last ? ordinal + 1 : 0;
    last = action.op;
    const OpId id = at.id + (action.op - local);
    const std::int32_t slot = activations_.acquire(i, at.unit, id, ordinal);
    if (slot < 0) continue;
    device_.wait(stream_of(block.first_op + action.op), *slots_[static_cast<std::size_t>(slot)]);
  }
}

void Executor::pass_message(const OpInstance& at, const Op& op) {
  const bool sends = op.kind == OpKind::kSend;
  const Operand& what = sends ? op.in[0] : op.out[0];
  const Array message =
      op.weight == Weight::kHead
          ? tied_share(what, at.unit)
          : Array{activations_.at(what, at.unit), plan_.param_dtype,
                  activations_.bytes(what, at.unit) / bytes_of(plan_.param_dtype)};
  if (sends) {
    groups_.pipeline->post(stream_of(at.op), message, op.peer, op.channel);
  } else {
    groups_.pipeline->fetch(stream_of(at.op), message, op.peer, op.channel);
  }
}

void Executor::release(const OpInstance& at) {
  if (!options_.poison && slots_.empty()) return;
  const Block& block = schedule_.blocks[at.block];
  const std::uint32_t local = at.op - block.first_op;
  for (std::uint32_t i = first_action_[at.op]; i < block.first_action + block.action_count; ++i) {
    const MemoryAction& action = schedule_.memory[i];
    if (action.op > local) break;
    if (action.acquire || action.bytes == 0) continue;
    const Activations::Place place = activations_.released(i, at.unit);
    if (place.data == nullptr) continue;
    const StreamId stream = stream_of(at.op);
    if (options_.poison) device_.poison(stream, place.data, place.bytes, DType::kFp32);
    if (place.slot >= 0) device_.record(stream, *slots_[static_cast<std::size_t>(place.slot)]);
  }
}

Event* Executor::event(const EventRef& ref, std::int32_t unit) const {
  const std::int32_t at = unit + ref.offset;
  if (!ref || at < 0 || at >= schedule_.units()) return nullptr;
  return events_[event_index(ref, unit)].get();
}

std::size_t Executor::event_index(const EventRef& ref, std::int32_t unit) const {
  return ref.name * static_cast<std::size_t>(schedule_.units()) +
         static_cast<std::size_t>(unit + ref.offset);
}

void Executor::wait_for(const OpInstance& at, const Op& op) {
  for (const EventRef& ref : op.waits) {
    // A later operation of the step may be the first to record it: then there is nothing to wait
    // for.
    if (const Event* awaited = event(ref, at.unit)) device_.wait(stream_of(at.op), *awaited);
  }
}

void Executor::record_for(const OpInstance& at, const Op& op) {
  Event* recorded = event(op.record, at.unit);
  if (recorded == nullptr) return;
  device_.record(stream_of(at.op), *recorded);
  Recorded& by = recorded_[event_index(op.record, at.unit)];
  by.id.store(at.id, std::memory_order_relaxed);
  by.number.store(begun_.load(std::memory_order_relaxed), std::memory_order_release);
}

}  // namespace shardwright::exec
