// SPDX-License-Identifier: Apache-2.0
// What a strategy writes a Schedule with: operations, events, tensors, and questions about units.
//
// Questions (kind, elements of a unit at an offset) are remembered while a block is written: the
// block then repeats for as many following units as would have got the same answers. That is how a
// schedule of eighty layers becomes a handful of blocks without any strategy knowing about it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/program/adapters.h"
#include "sim/program/layer_program.h"
#include "sim/program/low_precision.h"
#include "sim/program/optimizer_state.h"
#include "sim/program/stages.h"

namespace shardwright::sim {

/// kPrediction: modules of multi-token prediction in a chunk without the head, which else has them.
/// From kLayer on: layers, by LayerKind::index.
enum class UnitKind : std::uint8_t { kOutside, kEmbedding, kHead, kPrediction, kLayer };
inline constexpr std::size_t kUnitKinds = static_cast<std::size_t>(UnitKind::kLayer) + kLayerKinds;
constexpr bool is_layer(UnitKind kind) {
  return kind >= UnitKind::kLayer;
}
inline UnitKind unit_kind(LayerKind kind) {
  return static_cast<UnitKind>(static_cast<std::size_t>(UnitKind::kLayer) + kind.index());
}

/// How a strategy lays out parameters in units.
struct UnitLayout {
  bool wraps_embedding_and_head =
      true;                      // otherwise both belong to unit 0 (the root), as does a tied head
  bool separates_norms = false;  // norm weights form a unit of their own (YaFSDP)
  bool pads_rows = false;        // FSDP2: every parameter is padded on its first dimension
};

/// Until when a unit's parameters stay gathered: the end of its pass, of the micro-batch's backward
/// or of the step's. Where other micro-batches are in flight between the passes of one, in a
/// pipeline, they stay through the step.
enum class Gathered : std::uint8_t { kPass, kMicroStep, kStep };

class StepWriter {
 public:
  /// Of the units of one chunk: the whole model, or a part of a pipeline. Without programs for
  /// declarations alone.
  StepWriter(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
             const LayerPrograms* programs, const ChunkContent& content, Schedule& out);

  const Plan& plan() const { return plan_; }
  const Stack& stack() const { return stack_; }
  const Gpu& gpu() const { return gpu_; }
  std::int64_t layers() const { return schedule_.layers; }
  const Layout& layout() const { return schedule_.layout; }
  std::int64_t shard_ranks() const { return schedule_.shard_ranks(); }
  std::int64_t replicate_ranks() const { return schedule_.replicate_ranks(); }
  bool first_micro_step() const { return first_micro_; }
  /// Whether the unit's backward adds to the sums of gradients itself.
  bool sums_in_backward() {
    return schedule_.sharding.sums_in_backward && !first_micro_ && is_layer(kind());
  }
  bool last_micro_step() const { return last_micro_; }
  /// Of a strategy that does not reshard, parameters stay gathered for as long as `else_for` says.
  Gathered gathered_for(const StrategyInfo& strategy, Gathered else_for = Gathered::kStep) const {
    if (!content_.whole) return Gathered::kStep;
    return strategy.reshards ? Gathered::kPass : else_for;
  }
  /// Gradients wait, whole, for the last micro-batch.
  bool skips_reductions() const {
    return (stack_.no_sync || !content_.whole) && plan_.grad_accum > 1;
  }
  /// Units between which what the writer writes lies, both included.
  std::int32_t first_unit() const { return content_.embedding ? 0 : 1; }
  std::int32_t last_unit() const {
    const std::int32_t end = schedule_.head_unit();
    return kind_at(end) == UnitKind::kOutside ? end - 1 : end;
  }
  /// The current unit is one of these.
  bool at_first_unit() {
    return content_.embedding ? kind() == UnitKind::kEmbedding : kind(-1) == UnitKind::kOutside;
  }
  bool at_last_unit() {
    return content_.head ? kind() == UnitKind::kHead : kind(1) == UnitKind::kOutside;
  }
  /// Events of theirs, seen from the current unit.
  std::int16_t to_first_unit() const { return static_cast<std::int16_t>(first_unit() - unit_); }
  std::int16_t to_last_unit() const { return static_cast<std::int16_t>(last_unit() - unit_); }
  /// How the sums of gradients of a tied table's two uses become one, where they are not from the
  /// beginning: on a rank that has both, or between the stages that have a copy each.
  enum class TiedSum : std::uint8_t { kNone, kHere, kBetweenStages };
  TiedSum tied_sum() const;
  bool has_embedding() const { return content_.embedding; }
  bool has_head() const { return content_.head; }
  /// The executor's own memory, which allocates nothing as it goes.
  bool is_static() const { return stack_.memory == MemoryManager::kStatic; }
  /// Rows of the vocabulary times channels that a rank has.
  std::int64_t table_elements() const;
  /// Megatron cuts gradients into buckets where backward ends, in the chunk with the embedding.
  bool cuts_buckets() const { return content_.embedding; }

  /// Of so many parameters, as they travel: what stays in fp8 is gathered so.
  std::int64_t gathered_bytes(std::int64_t elements) const;
  /// As they lie there when they have been gathered: quantized ones as they travel, others in the
  /// type that is computed with (published peaks of torchtitan in fp8 are met so).
  std::int64_t unsharded_bytes(std::int64_t elements) const {
    return plan_.numerics.quantize != Quantize::kNone ? gathered_bytes(elements)
                                                      : bytes_of(plan_.param_dtype) * elements;
  }

  // Declarations.
  void set_layout(const UnitLayout& layout);
  std::uint8_t stream(const char* name, StreamRole role, int priority, int collective_priority = 0);
  std::uint8_t event(const char* name);
  /// What outlives operations; replaces what was stated before.
  void state(const ShardingFacts& facts) { schedule_.sharding = facts; }

  // Questions about the unit at `offset` from the current one.
  UnitKind kind(int offset = 0);
  /// Parameters gathered as this unit, padded to a multiple of the groups that share them; 0
  /// outside. With their routed experts, which fewer ranks share.
  std::int64_t elements(int offset = 0);
  /// What this rank has of them.
  std::int64_t owned(int offset = 0);
  /// Of the unit, what has gradients: all but what adapters leave frozen.
  std::int64_t trained(int offset = 0);
  std::int64_t trained_owned(int offset = 0);
  /// Whose gradients the current unit sums: of what it trains, or of the embedding's parameters
  /// that a head uses.
  std::int64_t summed() {
    const std::int64_t of_use = kind() == UnitKind::kHead ? schedule_.unit_sizes.head_gradient : 0;
    return of_use > 0 ? of_use : trained();
  }
  std::int64_t elements_of(UnitKind kind) const {
    return elements_[static_cast<std::size_t>(kind)].all();
  }
  /// The head's weights belong to the embedding's unit.
  bool tied() const { return schedule_.unit_sizes.tied(); }
  /// Norm weights that form a unit of their own, padded; 0 when they live in their layers.
  std::int64_t norm_elements() const { return schedule_.unit_sizes.norms; }
  /// All parameters of the units, padded; what this rank has of them; what is trained.
  std::int64_t total_elements() const { return total_.dense + total_.experts; }
  std::int64_t total_owned() const { return owned_of(total_); }
  std::int64_t total_trained() const { return total_trained_.dense + total_trained_.experts; }
  std::int64_t largest_trained() const;
  std::int64_t total_trained_owned() const { return owned_of(total_trained_); }

  // Operations. References are valid until the next operation is written.
  Op& op(OpKind kind, std::uint8_t stream, Phase phase);
  Op& collective(OpKind kind, std::uint8_t stream, Phase phase, std::int64_t bytes, DType dtype,
                 CommGroup group = CommGroup::kShard);
  /// A memory-bound kernel; several operations where the stack splits tensors above 2^31 bytes.
  /// `tensor_bytes` is the size of its largest operand. `waits` go to the first piece; the last
  /// piece is returned.
  Op& memory_op(OpKind kind, std::uint8_t stream, Phase phase, MemoryClass memory_class,
                std::int64_t bytes, std::int64_t tensor_bytes,
                std::initializer_list<EventRef> waits = {});
  /// The host blocks until `event` has completed.
  void host_wait(EventRef event, double wakeup_s);
  /// The host blocks until the device is idle.
  void synchronize(Phase phase);
  void host_work(double seconds, Phase phase);
  /// The next operation on the compute stream waits for this event.
  void wait_on_compute(EventRef event);
  void compute_pass(const UnitPass& pass);
  /// From now on one operation stands for all of a pass.
  void follow_memory_alone() { memory_alone_ = true; }
  /// The last operation written on the compute stream records `event_name`.
  void record_on_compute(std::uint8_t event_name);
  /// Host time of framework hooks, charged to the next compute operation.
  void unit_hook();

  // Memory, tied to the last operation written.
  void acquire(Tensor tensor, int offset, std::int64_t bytes, std::uint8_t stream,
               MemoryCategory category);
  void release(Tensor tensor, int offset, std::uint8_t used_on = kSameStream);
  /// Releases the weight gradients of the unit at offset 0 (and of the head, where unit 0 holds
  /// it).
  void release_weight_gradients(std::uint8_t used_on = kSameStream);
  /// Releases what acquire() took for all units: `bytes` in all.
  void release_all(Tensor tensor, std::int64_t bytes, MemoryCategory category);
  /// Releases what a pass acquired.
  void release_made(Tensor tensor, int offset, std::int64_t bytes, std::uint8_t used_on);
  void release_shard_gradients();
  /// The trainer holds tensors until backward has ended (LayerPrograms::held).
  bool holds() const {
    return stack_.keeps_logits || stack_.keeps_key_values || stack_.parallel.loss.keeps_output;
  }
  /// Releases these.
  void release_held();
  static constexpr std::uint8_t kSameStream = 0xff;

  // Blocks and sections; driven by lower.cc.
  void begin_section();
  void end_section(std::int32_t repeats);
  void begin_block(std::int32_t unit, int step, Phase phase);
  void end_block();
  /// Extends the block just written to `unit` if it would have come out the same.
  bool extend_to(std::int32_t unit);
  void set_micro_step(bool first, bool last);
  const UnitPass& forward_pass() const;
  const UnitPass& backward_pass() const;
  /// What a unit keeps of a micro-batch from its forward to its backward pass.
  Bytes kept_bytes(std::int32_t unit);
  Schedule& schedule() { return schedule_; }
  UnitKind kind_at(std::int32_t unit) const;

 private:
  /// Parameters over the shard group, and routed experts over the ranks that hold the same ones.
  struct Elements {
    std::int64_t dense = 0, experts = 0;
    std::int64_t all() const { return dense + experts; }
    Elements& operator+=(const Elements& other) {
      dense += other.dense;
      experts += other.experts;
      return *this;
    }
  };
  std::int64_t owned_of(const Elements& of) const {
    return of.dense / shard_ranks() + of.experts / schedule_.expert_shard_ranks();
  }
  void set_trained();
  /// Of the block's collectives, what goes over the groups of experts.
  void split_experts(const Block& block);
  struct Query {
    int offset;
    UnitKind answer;
  };
  bool checkpointed(std::int32_t unit) const;
  Bytes& acquired_bytes(Tensor tensor, int offset);
  /// A tensor of the unit at `offset` comes to life or dies at the last operation.
  MemoryAction& act(bool acquire, Tensor tensor, int offset, Bytes bytes);
  /// The last operation, counted from the block's first: what memory is tied to.
  std::uint32_t last_in_block() const;
  /// Gives the stream and events of a pass's own collectives their numbers in the schedule.
  void number(Op& op);
  /// Waits and host time that were put off go to an operation of the compute stream, the last one.
  void begin_on_compute(Op& op);

  const Model& model_;
  const Plan& plan_;
  const Stack& stack_;
  const Gpu& gpu_;
  const LayerPrograms* programs_;
  ChunkContent content_;
  Schedule& schedule_;
  UnitLayout layout_;
  std::array<Elements, kUnitKinds> elements_{}, trained_{};  // by kind of unit
  Elements total_, total_trained_;
  bool first_micro_ = true;
  bool last_micro_ = true;
  std::int32_t unit_ = 0;
  std::vector<Query> queries_;
  std::vector<EventRef> compute_waits_;
  double pending_hook_s_ = 0;
  bool memory_alone_ = false;
  /// By tensor, then the few kinds of unit that acquired it: most of all pairs never meet.
  std::array<std::vector<std::pair<UnitKind, Bytes>>, kTensorCount> acquired_bytes_{};
  std::array<MemoryCategory, kTensorCount> category_{};
  std::uint32_t last_compute_op_ = 0;
  std::uint8_t unit_stream_ = 0;  // of the units' own collectives; 0: none yet
  std::array<std::uint8_t, 3> unit_events_{};
};

// What the strategies' files share about what a rank holds for the whole step.

/// What every strategy says alike: what is divided, and the plan's types.
inline ShardingFacts facts_of(const StrategyInfo& strategy, const StepWriter& w) {
  const Plan& plan = w.plan();
  ShardingFacts facts;
  facts.shards = strategy.shards;
  facts.parameter_dtype = plan.param_dtype;
  facts.reduce_dtype = plan.reduce_dtype;
  facts.master_dtype = plan.master_dtype;
  facts.moment_dtype = plan.moment_dtype;
  facts.moment_bytes = moment_bytes(plan);
  if (plan.numerics.quantize != Quantize::kNone) {
    facts.layer_parameter_bytes = quantized_weight_bytes(plan.numerics.quantize);
  } else if (w.stack().memory != MemoryManager::kStatic &&
             strategy.shards != Sharded::kParameters) {
    const Bytes wider = bytes_of(plan.param_dtype) - bytes_of(DType::kBf16);
    facts.layer_parameter_bytes = weight_bytes(plan, w.stack(), w.gpu());
    if (plan.numerics.lora == 0) facts.layer_parameter_bytes += static_cast<double>(wider);
  }
  if (plan.numerics.lora > 0) {
    facts.trained = w.total_trained();
    facts.trained_owned = w.total_trained_owned();
    facts.largest_trained = w.largest_trained();
  }
  facts.sum_dtype = plan.master_dtype;
  facts.keeps_optimizer = plan.offload != Offload::kOptimizer;
  // One for each matrix, which a layer's are counted as: foreach kernels take many at once.
  facts.update_tensors = w.layers() + 2;
  return facts;
}

/// A compute copy exists beside the master when their dtypes differ.
inline bool has_compute_copy(const Plan& plan) {
  return plan.param_dtype != plan.master_dtype;
}

/// Whether gradients are written in another type than they are reduced in.
inline bool casts_gradients(const StepWriter& w) {
  return gradient_dtype(w.plan(), w.stack()) != w.plan().reduce_dtype;
}

/// What strategies that sum whole gradients on the native stack, and otherwise have `usual` buffers
/// for fresh ones, say about them. The first micro-batch writes the sums, where they have its type;
/// later ones add to them, which rounds each sum once, and need a buffer only for units that write
/// a gradient in more than one piece (chunks of the head's tokens, a tied embedding).
inline void sum_whole_gradients(ShardingFacts& facts, const StepWriter& w, std::int32_t usual) {
  const DType reduced = w.plan().reduce_dtype;
  const bool writes_sums =
      reduced == DType::kFp32 || (reduced == facts.sum_dtype && !casts_gradients(w));
  facts.sums_in_backward = writes_sums && w.plan().grad_accum > 1;
  facts.gradients.count = facts.sums_in_backward                          ? 1
                          : casts_gradients(w) || w.plan().grad_accum > 1 ? usual
                                                                          : 0;
}

/// Traffic of converting one element from dtype `from` to `to`.
constexpr std::int64_t cast_bytes(DType from, DType to) {
  return bytes_of(from) + bytes_of(to);
}

/// Casts so many elements of the master to what is computed with, where that has another type.
inline void cast_master(StepWriter& w, std::int64_t elements, EventRef record) {
  const Plan& plan = w.plan();
  if (!has_compute_copy(plan)) return;
  w.memory_op(OpKind::kCastShard, 0, Phase::kPrepare, MemoryClass::kCast,
              cast_bytes(plan.master_dtype, plan.param_dtype) * elements,
              bytes_of(plan.master_dtype) * elements)
      .record = record;
}

/// Adds what backward wrote of the current unit to whole sums, by an operation of that kind; the
/// first micro-batch writes them, cast where the types differ.
inline void add_to_whole_sums(StepWriter& w, OpKind kind, std::int64_t elements) {
  if (w.sums_in_backward()) return;  // the products have added it
  const std::int64_t width = bytes_of(w.plan().reduce_dtype);
  const std::int64_t written = bytes_of(gradient_dtype(w.plan(), w.stack()));
  if (!w.first_micro_step()) {
    w.memory_op(kind, 0, Phase::kBackward, MemoryClass::kAdd, (written + 2 * width) * elements, 0);
  } else if (casts_gradients(w)) {
    w.memory_op(OpKind::kCastGradient, 0, Phase::kBackward, MemoryClass::kCast,
                (written + width) * elements, 0);
  }
}

// One gradient of a table that is embedding and head where its two uses are summed for themselves:
// behind a step's reductions, before the norm. Stages that have a copy each exchange their sums and
// add them up, so that the copies stay equal (Megatron's all-reduce over the embedding group); a
// rank with both uses adds the head's to the embedding's.

class StepWriter;

/// Writes the blocks of a chunk, as many as it needs.
void write_tied_sum(StepWriter& w);

// Activations that wait for their backward pass in the host's memory: copied out behind a layer's
// forward, and in again while the layer after it runs backward.
//
// One stream carries both ways, since links that do both at once reach no more in all than one way
// alone. Two layers may be on their way at a time: a third waits, so that a link that is slower
// than the layers sets their pace.

class ActivationOffload {
 public:
  /// Of a plan that offloads none, it writes nothing.
  void declare(StepWriter& w);
  void before_forward(StepWriter& w);
  void after_forward(StepWriter& w);
  void before_backward(StepWriter& w);
  void after_backward(StepWriter& w);

 private:
  bool acts_on(StepWriter& w, int offset) const;
  void copy(StepWriter& w, OpKind kind, Phase phase, int offset, EventRef after,
            std::uint8_t record) const;
  void mark(StepWriter& w, Phase phase, std::uint8_t record) const;

  std::int64_t layer_bytes_ = 0;  // the mean of the chunk's layers
  std::uint8_t stream_ = 0, kept_ = 0, left_ = 0, returned_ = 0, used_ = 0;
};

}  // namespace shardwright::sim
