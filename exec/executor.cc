// SPDX-License-Identifier: Apache-2.0
#include "exec/executor.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "exec/comm/local_communicator.h"
#include "exec/host/host_device.h"
#include "exec/layout.h"
#include "kernels/bf16.h"
#include "kernels/random.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
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
      memory_(schedule_, *groups_.shard, device),
      sharding_(schedule_, layout_, memory_, groups_.shard->rank()),
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
  const std::vector<Nanoseconds> all = exchange_all(*groups_.world, clocks->latest());
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
  launched_unit_ = -1;
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
      // Launches of a process share a queue, and who fills it stops all of its threads.
      if (groups_.world->size() > 1 && std::exchange(launched_unit_, at.unit) != at.unit)
        device_.limit_run_ahead(stream);
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

// How far a step is, for whoever asks while the rank's own thread may wait for ever: numbers that
// the walk leaves behind, and events that any thread may query. And where it was when it failed.

namespace {

std::string_view words_for(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return "forward";
    case PassKind::kBackward:
      return "backward";
    case PassKind::kBackwardInput:
      return "input gradients";
    case PassKind::kBackwardWeight:
      break;
  }
  return "weight gradients";
}

std::string words_for(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t kMost = 8;  // to be listed
  if (ranks.size() <= kMost) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("{} ranks from {} on", ranks.size(), ranks.front());
}

CommGroup group_of(const Op& op) {
  return op.kind == OpKind::kGradientNorm ? CommGroup::kWorld : op.work.group;
}

}  // namespace

void Executor::begin_op(const OpInstance& at) {
  // What is inline has failed in the operation before; elsewhere nothing more need be issued.
  if (device_.has_failed()) device_.synchronize();
  device_.begin_operation(at.id);
  begun_id_.store(at.id, std::memory_order_relaxed);
  if (begun_.load(std::memory_order_relaxed) == 0) walks_.fetch_add(1, std::memory_order_relaxed);
  begun_ever_.fetch_add(1, std::memory_order_relaxed);
  is_within_a_step_.store(true, std::memory_order_relaxed);
  begun_.fetch_add(1, std::memory_order_release);
}

/// With whom an operation is done: all members of a collective's group, the other end of a message.
std::vector<std::int64_t> Executor::ranks_of(const Op& op) const {
  const std::int64_t rank = groups_.world->rank();
  if (op.peer >= 0)
    return {mesh_.members(CommGroup::kPipeline, rank)[static_cast<std::size_t>(op.peer)]};
  if (!is_collective(op.kind) && op.kind != OpKind::kGradientNorm) return {};
  std::vector<std::int64_t> ranks = mesh_.members(group_of(op), rank);
  if (ranks.size() < 2) ranks.clear();
  return ranks;
}

std::string Executor::words_of(OpId id) const {
  std::string words;
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (at.id != id) return;
    if (mesh_.pp > 1) words = fmt::format("stage {} of {}, ", place_.pp, mesh_.pp);
    if (const std::optional<Action>& pass = schedule_.sections[at.section].pass) {
      words += fmt::format("{} of micro-batch {}, chunk {}, ", words_for(pass->kind),
                           pass->micro_batch, pass->chunk);
    }
    words += name_of(op.kind);
    if (op.of != OpKind::kHostWork) words += fmt::format(" of {}", name_of(op.of));
    words += fmt::format(" of unit {} of {} on stream {}", schedule_.target(op, at.unit),
                         schedule_.units(), schedule_.streams[op.stream].name);
    const std::vector<std::int64_t> ranks = ranks_of(op);
    if (op.peer >= 0) {
      words += fmt::format(" {} rank {} of stage {}", op.kind == OpKind::kSend ? "to" : "from",
                           ranks.front(), op.peer);
    } else if (!ranks.empty()) {
      words += " between " + words_for(ranks);
    }
  });
  return words;
}

std::vector<std::int64_t> Executor::taken_ranks(OpId id) const {
  std::vector<std::int64_t> ranks;
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (at.id == id && op.kind != OpKind::kSend) ranks = ranks_of(op);
  });
  return ranks;
}

StepProgress Executor::progress() const {
  StepProgress progress;
  progress.operations = operations_;
  progress.begun = begun_.load(std::memory_order_acquire);
  progress.walks = walks_.load(std::memory_order_relaxed);
  if (progress.begun == 0) return progress;
  progress.is_within_a_step = is_within_a_step();
  progress.last_begun = words_of(begun_id_.load());
  if (progress.is_within_a_step) progress.takes = taken_ranks(begun_id_.load());
  std::int64_t oldest = 0;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const std::int64_t number = recorded_[i].number.load(std::memory_order_acquire);
    if (number == 0 || (oldest != 0 && number > oldest) || events_[i]->has_passed()) continue;
    oldest = number;
    progress.oldest_unfinished = words_of(recorded_[i].id.load());
  }
  return progress;
}

void Executor::end_with_place(bool issues) {
  // Streams that are threads are elsewhere than the host that has issued their work.
  const bool has_failed = device_.has_failed();
  OpId failed = -1;
  if (has_failed) {
    failed = device_.failed_operation();
  } else if (issues && begun_.load() > 0) {
    failed = begun_id_.load();
  }
  std::string place;
  if (failed >= 0) {
    place = ", at " + words_of(failed);
  } else if (mesh_.pp > 1) {
    place = fmt::format(", at stage {} of {}", place_.pp, mesh_.pp);
  }
  groups_.world->fail();
  device_.drain();
  try {
    // Others may know of a stream's failure before the host of this rank does.
    if (has_failed) device_.synchronize();
    throw;
  } catch (const Error& error) {
    throw Error(error.what() + place, error.code());
  } catch (const Aborted&) {
    throw;  // of which another rank tells
  } catch (const std::system_error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Error(fmt::format("unexpected failure: {}{}", error.what(), place), ExitCode::kFailed);
  }
}

// A step that counts for nothing, before the first one that does.
//
// What a GPU does for the first time loads code, builds plans and allocates, which may wait until
// the GPU is idle. A collective keeps it busy until all ranks have come. Where both meet, ranks
// wait for each other for ever (CUDA's guide calls it a hazard of lazy loading), so first
// everything but collectives is done once, and then each collective alone; stages, whose operations
// are not the same, do it side by side, and then connect to one another. Of many micro-batches the
// first two and the last are gone through: those between repeat the second. Attention of packed
// documents runs in every way in which a later batch may ask for it.

namespace {

/// No run has so many steps, so nobody traces this one.
constexpr std::int64_t kNoStep = std::numeric_limits<std::int32_t>::max();

RankGroups silent(const RankGroups& groups, Device& device) {
  RankGroups result;
  result.replicate = std::make_unique<SilentCommunicator>(*groups.replicate, device);
  result.shard = std::make_unique<SilentCommunicator>(*groups.shard, device);
  result.world = std::make_unique<SilentCommunicator>(*groups.world, device);
  if (groups.tensor) result.tensor = std::make_unique<SilentCommunicator>(*groups.tensor, device);
  if (groups.pipeline) {
    result.pipeline = std::make_unique<SilentCommunicator>(*groups.pipeline, device);
  }
  return result;
}

Batch first_micro_step_of(const Batch& batch, std::int64_t micro_steps) {
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin(), all.begin() + std::ssize(all) / micro_steps);
  };
  return {part(batch.tokens), part(batch.targets), part(batch.positions), part(batch.first_keys)};
}

}  // namespace

std::size_t Executor::most_of_all_ranks(std::size_t mine) {
  const std::vector<std::size_t> all = exchange_all(*groups_.world, mine);
  return *std::max_element(all.begin(), all.end());
}

bool Executor::is_rehearsed(std::int64_t micro_step) const {
  return micro_step < 2 || micro_step + 1 >= plan_.grad_accum;
}

/// Targets of the part of the vocabulary that this tensor rank has: nobody tells of others.
Batch Executor::with_own_targets(Batch batch) const {
  const Slice own{SliceAlong::kRows, static_cast<std::int16_t>(place_.tp),
                  static_cast<std::int16_t>(mesh_.tp)};
  const Slice::Range part = own.of(model_.vocab);
  for (std::int32_t& target : batch.targets) {
    if (target >= 0) target = static_cast<std::int32_t>(part.begin + target % part.size());
  }
  return batch;
}

void Executor::rehearse_alone(const Batch& batch) {
  RankGroups groups = silent(groups_, device_);
  std::swap(groups, groups_);
  rehearses_ = true;
  model_ops_.rehearse(true);
  try {
    StepOptions options;
    options.adamw.step = kNoStep;
    step(with_own_targets(batch), options);
    evaluate(first_micro_step_of(with_own_targets(batch), plan_.grad_accum));
  } catch (...) {
    std::swap(groups, groups_);
    rehearses_ = false;
    model_ops_.rehearse(false);
    throw;
  }
  std::swap(groups, groups_);
  rehearses_ = false;
  model_ops_.rehearse(false);
  // As the constructor left it.
  memory_.clear(device_, streams_[0]);
  workspace_.initialize(model_, device_, streams_[0]);
  device_.synchronize();
}

/// A collective of tensor ranks, on whatever lies where activations do.
void Executor::move_anything(const Op& op) {
  const StreamId stream = streams_[op.stream];
  const Bytes bytes = std::min(op.work.bytes, memory_.arena().size_bytes);
  const Array all{memory_.activations(), plan_.param_dtype, bytes / bytes_of(plan_.param_dtype)};
  Communicator& ranks = *groups_.tensor;
  const Array own = share_of(all, ranks.size(), ranks.rank());
  if (op.kind == OpKind::kAllGather) {
    ranks.all_gather(stream, own, all);
  } else if (op.kind == OpKind::kReduceScatter) {
    ranks.reduce_scatter(stream, all, own, false, {});
  } else {
    ranks.all_reduce(stream, all);
  }
}

void Executor::rehearse(const Batch& batch, const OnStage& on_stage) {
  const auto tell = [&](const std::string& what, bool is_collective) {
    if (on_stage) on_stage(what, is_collective);
  };
  tell("a step without collectives", false);
  rehearse_alone(batch);
  tell("the rendezvous of all ranks after a step without collectives", false);
  groups_.world->barrier();
  // One of each kind and size of the stage; all ranks meet behind each.
  std::set<std::tuple<OpKind, bool, std::int64_t>> known;
  micro_step_ = plan_.grad_accum - 1;
  std::vector<OpInstance> collectives;
  std::optional<OpInstance> norm;  // an all-gather of the step's records, between all ranks
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (op.kind == OpKind::kGradientNorm && !norm) norm = at;
    if (!is_collective(op.kind)) return;
    const bool is_of_layer = moves_activations(op);
    const std::int64_t size =
        is_of_layer ? op.work.bytes : layout_.unit(schedule_.target(op, at.unit)).elements;
    if (known.insert({op.kind, is_of_layer, size}).second) collectives.push_back(at);
  });
  const auto rehearse_one = [&](const OpInstance& at, const auto& issue) {
    tell("the " + words_of(at.id), true);
    begin_op(at);
    finish_work(issue);
  };
  const std::size_t most = most_of_all_ranks(collectives.size());
  for (std::size_t i = 0; i < most; ++i) {
    if (i < collectives.size()) {
      const OpInstance& at = collectives[i];
      const Op& op = schedule_.ops[at.op];
      rehearse_one(at, [&] { moves_activations(op) ? move_anything(op) : run_sharding(at, op); });
    }
    groups_.world->barrier();
  }
  if (norm) rehearse_one(*norm, [&] { sum_gradients(); });
  groups_.world->barrier();
  if (groups_.pipeline) {
    tell("the first messages between the stages", true);
    finish_work([&] {
      groups_.pipeline->connect_messages({workspace_.scratch(), DType::kFp32, 1});
    });
    groups_.world->barrier();
  }
  memory_.clear(device_, streams_[0]);
  workspace_.initialize(model_, device_, streams_[0]);
  device_.synchronize();
}

// Gathers, casts and reductions: what strategies put around the operations of the model.

void Executor::run_sharding(const OpInstance& at, const Op& op) {
  const StreamId stream = streams_[op.stream];
  const std::int32_t unit = schedule_.target(op, at.unit);
  switch (op.kind) {
    case OpKind::kCastShard:
      return cast_owned(stream, at.unit);
    case OpKind::kAllGather:
      return gather(unit, stream);
    case OpKind::kCastGradient:
    case OpKind::kCopyIn:
      return take_gradient(unit, op.kind, stream);
    case OpKind::kReduceScatter:
      return reduce_scatter(unit, stream);
    case OpKind::kAllReduce:
      return all_reduce(unit, stream);
    case OpKind::kAccumulate:
      if (op.weight == Weight::kHead) return add_other_use(at, op);
      // Sharded reductions have added onto the sum themselves.
      if (sharding_.shards() == Sharded::kNothing) take_gradient(unit, op.kind, stream);
      return;
    case OpKind::kScale:
      return;  // the update divides
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no {}", name_of(op.kind));
  }
}

void Executor::cast_owned(StreamId stream, std::int32_t first) {
  const auto next = cast_units_.upper_bound(first);
  const std::int32_t end = next != cast_units_.end() ? *next : layout_.units();
  for (std::int32_t u = first; u < end; ++u) {
    const UnitMemory& unit = sharding_.unit(u);
    if (unit.owned_master.data == unit.owned_source.data) continue;
    device_.cast(stream, unit.owned_master, unit.owned_source);
  }
}

void Executor::cast_changed() {
  if (cast_units_.empty()) cast_owned(streams_[0], 0);
}

void Executor::gather(std::int32_t u, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  groups_.shard->all_gather(stream, unit.owned_source, unit.parameters);
}

void Executor::take_gradient(std::int32_t u, OpKind kind, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  // Sums that stay whole on a rank are added to; otherwise a gradient is only converted.
  if (sharding_.sums_whole_gradients() && micro_step_ > 0) {
    device_.accumulate(stream, unit.gradient, unit.reduced);
  } else {
    SHARDWRIGHT_CHECK(kind != OpKind::kAccumulate, "nothing to add the gradient of unit {} to", u);
    device_.cast(stream, unit.gradient, unit.reduced);
  }
  poison_gradient(u, stream);
}

void Executor::reduce_scatter(std::int32_t u, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  Communicator& chain = *groups_.replicate;
  const bool whole = sharding_.sums_whole_gradients();
  bool adds = !whole && micro_step_ > 0;
  // Groups of equal shards add one after the other onto one sum, which the last one then shows to
  // all: that keeps the order of ranks over the whole world. Where sums have no order anyway, each
  // group has its own, and they are added at the end of the step.
  const bool chained = !whole && chain.size() > 1 && chain.ordered();
  if (chained && chain.rank() > 0) {
    chain.receive(stream, unit.gradient_sum, chain.rank() - 1);
    adds = true;
  }
  groups_.shard->reduce_scatter(stream, unit.reduced, unit.gradient_sum, adds, unit.scratch);
  if (chained && chain.rank() + 1 < chain.size()) {
    chain.send(stream, unit.gradient_sum, chain.rank() + 1);
  }
  if (whole) return;
  if (unit.reduced.data == unit.gradient.data) {
    poison_gradient(u, stream);
  } else if (options_.poison) {
    device_.poison(stream, unit.reduced.data, unit.reduced.bytes(), unit.reduced.dtype);
  }
}

void Executor::all_reduce(std::int32_t u, StreamId stream) {
  const UnitMemory& unit = sharding_.unit(u);
  Communicator& group = *groups_.replicate;
  const bool sums_whole = sharding_.sums_whole_gradients();
  if (group.ordered() && !sums_whole) {
    group.broadcast(stream, unit.gradient_sum, group.size() - 1);
  } else if (sums_whole || micro_step_ + 1 == plan_.grad_accum) {
    group.all_reduce(stream, unit.gradient_sum);
  }
}

Array Executor::tied_share(const Operand& where, std::int32_t unit) const {
  Array share = sharding_.unit(unit).gradient_sum;
  if (where) share.data = static_cast<std::byte*>(activations_.at(where, unit));
  return share;
}

// From another stage come the sums of the table's other use, which has the same place in its unit
// there; on this one all gradients of the head lie so, and the last norm's are nowhere else.
void Executor::add_other_use(const OpInstance& at, const Op& op) {
  const StreamId stream = streams_[op.stream];
  const bool is_here = !op.in[0];
  const Array from = tied_share(op.in[0], is_here ? layout_.head_unit() : at.unit);
  const Array to = sharding_.unit(at.unit).gradient_sum;
  for (const OwnedPart& part : layout_.owned(at.unit, sharding_.shard_rank())) {
    const Array more = from.part(part.share_offset, part.count());
    const Array sum = to.part(part.share_offset, part.count());
    if (part.tensor == layout_.tied_table()) {
      device_.accumulate(stream, more, sum);
    } else if (layout_.tensor(part.tensor).gradient_unit != at.unit) {
      device_.cast(stream, more, sum);
    }
  }
}

void Executor::poison_gradient(std::int32_t u, StreamId stream) {
  if (!options_.poison) return;
  const Array gradient = sharding_.unit(u).gradient;
  device_.poison(stream, gradient.data, gradient.bytes(), gradient.dtype);
}

// What lives from step to step: initial values, and the views that checkpoints read and write.

std::vector<OwnedState> Executor::owned_state() const {
  std::vector<OwnedState> states;
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    const UnitMemory& unit = sharding_.unit(u);
    for (const OwnedPart& part : layout_.owned(u, sharding_.shard_rank())) {
      const auto view = [&](const Array& array) {
        return array.part(part.share_offset, part.count());
      };
      states.push_back({part.tensor, part.tensor_offset, part.rows, part.cols,
                        view(unit.owned_master), view(unit.first_moment), view(unit.second_moment),
                        view(unit.gradient_sum), part.counts});
    }
  }
  return states;
}

std::vector<OwnedState> Executor::counted_state() const {
  if (groups_.replicate->rank() > 0) return {};
  std::vector<OwnedState> states = owned_state();
  std::erase_if(states, [](const OwnedState& state) { return !state.counts; });
  return states;
}

void Executor::initialize(std::uint64_t seed) {
  const kernels::RandomStream random{seed, kernels::RandomSite::kInit, 0};
  for (const OwnedState& state : owned_state()) {
    const ParameterTensor& tensor = layout_.tensor(state.tensor);
    std::vector<float> values(static_cast<std::size_t>(state.parameter.size), 0.0f);
    if (tensor.initial == Initial::kOnes) std::fill(values.begin(), values.end(), 1.0f);
    if (tensor.initial == Initial::kNormal) {
      const std::int64_t stride = tensor.row_length();
      for (std::int64_t row = 0; row < state.rows; ++row) {
        const auto first =
            tensor.first_index + static_cast<std::uint64_t>(state.tensor_offset + row * stride);
        draw_weights(random, first, layout_.initial_deviation(),
                     std::span(values).subspan(static_cast<std::size_t>(row * state.cols),
                                               static_cast<std::size_t>(state.cols)));
      }
    }
    write(values, state.parameter);
    device_.zero(streams_[0], state.first_moment.data, state.first_moment.bytes());
    device_.zero(streams_[0], state.second_moment.data, state.second_moment.bytes());
  }
  parameters_changed();
}

// The record of a step is free between steps, so this takes no memory of the device.
std::vector<std::array<std::int64_t, kExactSumWords>> Executor::squares_of_parameters(
    const std::vector<OwnedState>& states) {
  std::vector<std::array<std::int64_t, kExactSumWords>> squares(states.size());
  std::int64_t* words = workspace_.record(groups_.world->rank());
  for (std::size_t i = 0; i < states.size(); ++i) {
    device_.zero(streams_[0], words, sizeof squares[i]);
    device_.sum_of_squares(streams_[0], states[i].parameter, words);
    device_.copy(streams_[0], squares[i].data(), words, sizeof squares[i]);
  }
  device_.synchronize();
  return squares;
}

void Executor::parameters_changed() {
  cast_changed();
  device_.synchronize();
}

std::vector<float> Executor::read(const Array& array) {
  std::vector<float> values(static_cast<std::size_t>(array.size));
  if (array.dtype == DType::kFp32) {
    device_.copy(streams_[0], values.data(), array.data, array.bytes());
    device_.synchronize();
    return values;
  }
  std::vector<kernels::BFloat16> narrow(values.size());
  device_.copy(streams_[0], narrow.data(), array.data, array.bytes());
  device_.synchronize();
  std::transform(narrow.begin(), narrow.end(), values.begin(),
                 [](kernels::BFloat16 x) { return kernels::to_float(x); });
  return values;
}

void Executor::copy_to_host(const Array& array, std::byte* to) {
  device_.copy(streams_[0], to, array.data, array.bytes());
}

void Executor::write(const std::vector<float>& values, const Array& array) {
  if (array.dtype == DType::kFp32) {
    device_.copy(streams_[0], array.data, values.data(), array.bytes());
    device_.synchronize();
    return;
  }
  std::vector<kernels::BFloat16> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(),
                 [](float x) { return kernels::to_bf16(x); });
  device_.copy(streams_[0], array.data, narrow.data(), array.bytes());
  device_.synchronize();
}

// The end of a step: gradient norm over all ranks, clipping, AdamW. And evaluation, which is the
// beginning of one.

void Executor::run_update(const Op& op, const StepOptions& options) {
  if (!updated_.insert(op.kind).second) return;
  switch (op.kind) {
    case OpKind::kGradientNorm:
      return sum_gradients();
    case OpKind::kClip: {
      const StepRecords records{workspace_.record(0), workspace_.plan().exchange_bytes / 8,
                                schedule_.world_ranks(), plan_.grad_accum};
      return device_.finish_gradients(streams_[0], records, options.clip,
                                      workspace_.totals(schedule_.world_ranks()));
    }
    case OpKind::kOptimizer:
      return update(options);
    default:
      SHARDWRIGHT_CHECK(false, "the executor has no {} in the update", name_of(op.kind));
  }
}

void Executor::sum_gradients() {
  const int rank = groups_.world->rank();
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    for (const Run& run : counted_[static_cast<std::size_t>(u)]) {
      device_.sum_of_squares(streams_[0], sharding_.unit(u).gradient_sum.part(run.first, run.count),
                             workspace_.record(rank));
    }
  }
  if (groups_.world->size() == 1) return;
  // Records are copied, not added, so their type is of no matter.
  const std::int64_t words = workspace_.plan().exchange_bytes / 4;
  groups_.world->all_gather(streams_[0], {workspace_.record(rank), DType::kFp32, words},
                            {workspace_.record(0), DType::kFp32, words * groups_.world->size()});
}

void Executor::update(const StepOptions& options) {
  const StepTotals* totals = workspace_.totals(schedule_.world_ranks());
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    const UnitMemory& unit = sharding_.unit(u);
    const std::vector<UpdateSegment>& segments = segments_[static_cast<std::size_t>(u)];
    if (segments.empty()) continue;
    device_.adamw(streams_[0], options.adamw, totals, segments, unit.gradient_sum,
                  unit.owned_master, unit.first_moment, unit.second_moment);
  }
  cast_changed();
}

LossSums Executor::evaluate(Batch batch, LossSums sum) {
  const int rank = groups_.world->rank();
  recorder_.prepare_step(0);
  LossSums mine;
  begin_walk(batch, 1, 0);
  finish_work([&] {
    bool is_done = false;
    for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
      const std::optional<Action>& pass = schedule_.sections[at.section].pass;
      if (is_done || (pass ? pass->micro_batch > 0 : at.micro_step > last_prepare_)) return;
      const Phase phase = schedule_.blocks[at.block].phase;
      const bool is_before_loss = at.unit == schedule_.head_unit() && op.phase == Phase::kForward;
      const bool is_forward = phase == Phase::kForward || phase == Phase::kPrepare;
      const bool goes_back = pass && pass->kind != PassKind::kForward;
      if (op.kind == OpKind::kHeadProjection) {
        acquire(at, head_ops_ - 1);
        run_head(at, false);
        is_done = true;
      } else if ((is_forward && !goes_back) || is_before_loss) {
        run_op(at, op, {});
      }
    });
    device_.copy(streams_[0], &mine, workspace_.loss(rank, 0), sizeof mine);
  });
  // One by one, in the order of a single rank.
  for (const LossSums& part : exchange_all(*groups_.world, mine)) {
    sum.loss += part.loss;
    sum.tokens += part.tokens;
  }
  return sum;
}

}  // namespace shardwright::exec
