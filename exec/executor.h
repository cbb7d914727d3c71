// SPDX-License-Identifier: Apache-2.0
// Runs the schedule of a plan: the same operations that the simulator costs, on a device and with a
// communicator, for one rank.
//
// A step walks the schedule in host order. Each operation becomes the device's kernels or a
// collective on its stream, behind the events it waits for; tensors lie where the plan put them.
// The host waits once, at the end of the step.
//
// The arithmetic does not depend on how work is split over ranks. The gradient of a micro-batch is
// computed alone. Micro-batch m of rank r of W holds micro-batch m*W + r, and sharded gradients are
// summed strictly in that order: a reduction starts from the sum of earlier micro-batches and adds
// the contributions of ranks 0, 1, ... in fp32. That is what one rank does with W*A micro-batches,
// so any W and A with the same product give the same bits. Replicated sums (ddp, zero1) are reduced
// only once a step; there this holds for A = 1 or W = 1. Division by the number of tokens happens
// once, in the update.
//
// Read next: exec/step_memory.h (which buffer), exec/model_ops.h (which kernel), exec/device.h.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/batch.h"
#include "exec/communicator.h"
#include "exec/device.h"
#include "exec/layout.h"
#include "exec/model_ops.h"
#include "exec/recorder.h"
#include "exec/step_memory.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::exec {

struct ExecutorOptions {
  bool trace = false;             // record a timeline of every step
  bool poison = false;            // fill released memory with signalling NaNs
  StepTracer* tracer = nullptr;   // sees the steps of its choice instead, when tracing
  RangeMarker* ranges = nullptr;  // hears what is enqueued: "backward all_gather"
  /// On a device with clocks, what an operation is said to last; none: what it took. A receive
  /// lasts until its message is there, and then that.
  using Lasts = std::function<std::optional<Nanoseconds>(const OpInstance& at, const Op& op)>;
  Lasts lasts = {};
};

struct StepOptions {
  kernels::AdamW adamw;  // step counts from 1; grad_scale is not read
  ClipOptions clip;
};

struct StepResult {
  double loss_sum = 0;       // of all ranks
  std::int64_t tokens = 0;   // that count
  double gradient_norm = 0;  // of the mean loss
  bool skipped = false;      // not finite or too large: parameters and moments are as before
  double seconds = 0;
  double loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0; }
};

/// How far a rank is in a step.
struct StepProgress {
  std::int64_t begun = 0, operations = 0;
  std::string last_begun;         // in words; empty: nothing yet
  std::string oldest_unfinished;  // of what others wait for; empty: all that was begun is done
  std::int64_t walks = 0;         // steps and evaluations begun
  bool is_within_a_step = false;
  /// Ranks that the operation begun last takes: the members of a collective, the sender of a
  /// message.
  std::vector<std::int64_t> takes{};
};

/// What a rank owns of one tensor, in device memory: `rows` runs of `cols` elements that lie a row
/// of the tensor apart in it.
struct OwnedState {
  int tensor = 0;                  // index into layout().tensors()
  std::int64_t tensor_offset = 0;  // elements from its begin
  std::int64_t rows = 1;
  std::int64_t cols = 0;
  Array parameter;
  Array first_moment;
  Array second_moment;
  Array gradient;      // sum over the tokens of the last step
  bool counts = true;  // here, where other tensor ranks hold the same
};

class Executor {
 public:
  /// `groups` are this rank's. The device has no streams yet and outlives the executor. Throws
  /// Error naming what of model or plan cannot be executed.
  Executor(const Model& model, const Plan& plan, Schedule schedule, Device& device,
           RankGroups groups, const ExecutorOptions& options = {});
  /// Waits until no rank reads this one's memory.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Weights from the seed, by global index; moments zero.
  void initialize(std::uint64_t seed);
  StepResult step(Batch batch, const StepOptions& options);
  /// Does everything of a step and of an evaluation once, so that nothing is loaded or made while
  /// collectives run: to be called by all ranks, before initialize(), which forgets its results.
  /// `on_stage` hears in words what is tried next, and whether that is a collective.
  using OnStage = std::function<void(const std::string& what, bool is_collective)>;
  void rehearse(const Batch& batch, const OnStage& on_stage = {});
  /// The same without collectives and without rendezvous other ranks.
  void rehearse_alone(const Batch& batch);
  /// Adds the losses of one micro-batch of every rank to `sum`, without gradients.
  LossSums evaluate(Batch batch, LossSums sum = {});

  const ParameterLayout& layout() const { return layout_; }
  /// Everything this rank owns, by unit and place. After parameters were written there,
  /// parameters_changed() must follow.
  std::vector<OwnedState> owned_state() const;
  /// Of that, what no other rank of the world keeps, too, or what this one of them accounts for.
  std::vector<OwnedState> counted_state() const;
  /// Ranks with a counted state, in order.
  const std::vector<std::int64_t>& counting_ranks() const { return counting_ranks_; }
  /// Which of the ranks that train on different sequences this one is, and how many there are.
  std::int64_t data_rank() const { return place_.dp; }
  std::int64_t data_ranks() const { return mesh_.dp; }
  /// The first rank of every stage, in their order; of one stage rank 0.
  std::vector<std::int64_t> first_ranks_of_stages() const {
    return mesh_.members(CommGroup::kPipeline, 0);
  }
  void parameters_changed();
  /// Of each of these states the exact sum of its parameter's squares (kernels/exact_sum.h), equal
  /// where all values are; the host waits.
  std::vector<std::array<std::int64_t, kExactSumWords>> squares_of_parameters(
      const std::vector<OwnedState>& states);
  /// Copies between device arrays and host floats (bf16 is widened and rounded); the host waits.
  std::vector<float> read(const Array& array);
  /// Enqueues a copy of the bytes as they are; they are there after device().synchronize().
  void copy_to_host(const Array& array, std::byte* to);
  void write(const std::vector<float>& values, const Array& array);

  const Schedule& schedule() const { return schedule_; }
  Device& device() { return device_; }
  Communicator& world() { return *groups_.world; }
  /// Null where this rank has nobody to share such a group with.
  Communicator* group(CommGroup kind) { return groups_.of(kind).get(); }
  /// Its ranks of the world.
  std::vector<std::int64_t> members(CommGroup kind) const {
    return mesh_.members(kind, groups_.world->rank());
  }
  const StepTracer* tracer() const { return options_.tracer; }
  Bytes planned_bytes() const { return StepMemory::planned_bytes(schedule_); }
  /// Of the present step, or the last one. Any thread may ask.
  StepProgress progress() const;
  /// Operations of all steps, and whether one of them runs. Any thread may ask.
  std::int64_t begun_operations() const { return begun_ever_.load(std::memory_order_relaxed); }
  bool is_within_a_step() const { return is_within_a_step_.load(std::memory_order_relaxed); }
  /// Of the last step, when tracing.
  Timeline timeline() const { return recorder_.timeline(schedule_, planned_bytes()); }

 private:
  /// Calls issue() and waits for what it enqueued, also when it throws: streams may be writing to
  /// its variables. An error says at which operation, where that is known.
  template <class Issue>
  void finish_work(Issue&& issue) {
    bool issues = true;
    try {
      issue();
      issues = false;
      device_.synchronize();
      groups_.world->check();
      is_within_a_step_.store(false, std::memory_order_relaxed);
    } catch (...) {
      end_with_place(issues);
    }
  }
  /// In a handler: lets other ranks go, waits for the own work and throws what ended it.
  [[noreturn]] void end_with_place(bool issues);
  bool is_rehearsed(std::int64_t micro_step) const;
  std::size_t most_of_all_ranks(std::size_t mine);
  Batch with_own_targets(Batch batch) const;
  void move_anything(const Op& op);
  /// Clocks of all ranks go on from the latest one, which is returned; 0 where there are none.
  Nanoseconds align_clocks();
  std::optional<Nanoseconds> lasts(const OpInstance& at, const Op& op) const;
  /// Returns when the step begins by the clocks of streams.
  Nanoseconds begin_walk(Batch& batch, std::int64_t micro_steps, std::int32_t step);
  void run_op(const OpInstance& at, const Op& op, const StepOptions& options);
  void begin_op(const OpInstance& at);
  /// Poisons what is dead after it and records its event.
  void end_op(const OpInstance& at, const Op& op);
  /// An operation of the step in words: stage and pass, what it does to which unit, with whom.
  std::string words_of(OpId id) const;
  std::vector<std::int64_t> taken_ranks(OpId id) const;
  std::vector<std::int64_t> ranks_of(const Op& op) const;
  /// Memory actions of the operation and `more` that follow it.
  void acquire(const OpInstance& at, std::uint32_t more);
  void release(const OpInstance& at);
  void pass_message(const OpInstance& at, const Op& op);
  /// The rank's share of the unit's gradients that has arrived at `where`, or its own.
  Array tied_share(const Operand& where, std::int32_t unit) const;
  void add_other_use(const OpInstance& at, const Op& op);
  /// That of the schedule, or one that a transport of messages has for itself.
  StreamId stream_of(std::uint32_t op) const { return op_streams_[op]; }
  void wait_for(const OpInstance& at, const Op& op);
  void record_for(const OpInstance& at, const Op& op);
  Event* event(const EventRef& ref, std::int32_t unit) const;
  std::size_t event_index(const EventRef& ref, std::int32_t unit) const;

  /// Whether the operation follows the head's projection and runs with it.
  bool runs_with_head(const OpInstance& at) const;
  void run_head(const OpInstance& at, bool makes_gradients);
  void run_sharding(const OpInstance& at, const Op& op);
  void gather(std::int32_t unit, StreamId stream);
  void take_gradient(std::int32_t unit, OpKind kind, StreamId stream);
  void reduce_scatter(std::int32_t unit, StreamId stream);
  void all_reduce(std::int32_t unit, StreamId stream);
  void poison_gradient(std::int32_t unit, StreamId stream);

  void run_update(const Op& op, const StepOptions& options);
  void sum_gradients();
  void update(const StepOptions& options);
  /// Of the chunk that begins with that unit: other ranks may be gathering what was cast before.
  void cast_owned(StreamId stream, std::int32_t first);
  /// Where no step begins with casts, the compute copy is made when masters have changed.
  void cast_changed();

  const Model model_;
  const Plan plan_;
  const Schedule schedule_;
  const RankMesh mesh_;
  const RankPlace place_;
  const std::vector<std::int64_t> counting_ranks_;
  Device& device_;
  RankGroups groups_;
  ExecutorOptions options_;
  ParameterLayout layout_;
  StepMemory memory_;
  Sharding sharding_;
  Activations activations_;
  Workspace workspace_;
  std::vector<StreamId> streams_;         // by schedule stream
  std::vector<StreamId> op_streams_;      // by operation of the schedule
  std::vector<std::string> range_names_;  // by operation, where ranges are marked
  std::uint32_t head_ops_ = 0;            // from its projection to its weight gradient
  ModelOps model_ops_;
  Recorder recorder_;
  Poison poison_;
  std::vector<std::uint32_t> first_action_;     // by operation: its first memory action
  std::vector<std::unique_ptr<Event>> events_;  // by name and unit
  std::vector<std::unique_ptr<Event>> slots_;   // when whoever had a slot of messages was done
  struct Recorded {                             // which operation of the step recorded an event
    std::atomic<std::int64_t> number{0};
    std::atomic<OpId> id{0};
  };
  std::vector<Recorded> recorded_;  // by event
  std::int64_t operations_ = 0;     // of a step
  std::atomic<std::int64_t> begun_{0};
  std::atomic<OpId> begun_id_{0};
  std::atomic<std::int64_t> begun_ever_{0};
  std::atomic<std::int64_t> walks_{0};
  std::atomic<bool> is_within_a_step_{false};
  std::vector<std::vector<UpdateSegment>> segments_;  // by unit
  struct Run {
    std::int64_t first = 0, count = 0;
  };
  std::vector<std::vector<Run>> counted_;  // of the own share, by unit
  std::int32_t first_micro_ = 0;           // OpInstance::micro_step of the first micro-batch
  std::int32_t last_prepare_ = 0;          // of what comes before it or is it
  std::int64_t micro_step_ = -1;
  std::int32_t launched_unit_ = -1;
  std::set<OpKind> updated_;  // chunks of a stage are updated at once, with the first one
  bool rehearses_ = false;
  const std::set<std::int32_t> cast_units_;  // which the schedule's own casts of masters begin with
};

}  // namespace shardwright::exec
