// SPDX-License-Identifier: Apache-2.0
// What one rank does in one optimizer step: the heart of the project. The simulator gives every
// operation a duration, the executor runs it; predicted and measured timelines therefore subtract
// operation by operation.
//
// A schedule is compact. Operations are listed in the order in which the host issues them, in
// Blocks that repeat over units (embedding = 0, layers = 1..L, head = L+1, shared norms = L+2). The
// step is a program of blocks, run-length encoded in Sections: what begins a step; forward and
// backward of the first micro-batch, of those between, of the last; the update. Streams run their
// operations in order; an operation also waits for the events it names. An event is the last
// recorded instance at the time the wait is issued, as with CUDA events; waiting for an event that
// was never recorded is no wait.
//
// Memory is part of the schedule: every block lists, in host order, which tensors come to life and
// die. What outlives the step is listed apart (persistent), with the facts about sharding from
// which its sizes and places follow (sim/core/placement.h). for_each_op walks the expanded step.
//
// A schedule is the view of one rank. Layers with tensor, context or expert parallelism communicate
// on a stream of their own (sim/program/list_pass.h). Of a pipeline's chunk it holds each kind of
// pass as a section (sim/strategies/lower.h); a stage's has a section for every pass of its chunks,
// in the order that sim/schedules say (sim/pipeline/step_program.h). Read next:
// sim/strategies/lower.h (who writes it), sim/engine/engine.h (who costs it), exec/executor.h (who
// runs it).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/words.h"
#include "sim/core/collective.h"
#include "sim/core/layout.h"
#include "sim/core/parallelism.h"
#include "sim/core/pipeline.h"
#include "sim/core/product_choices.h"
#include "sim/core/strategy.h"
#include "sim/core/tensor.h"
#include "sim/core/units.h"

namespace shardwright {

// One operation of a step: what it is, which stream it runs on, what it waits for and how much work
// it is.
//
// An Op is a template: it belongs to a Block that may repeat over many units (layers), so it names
// events and tensors relative to the unit it runs for. The simulator gives an Op a duration, the
// executor gives it a kernel or a collective; both read the same fields. What an operation of the
// model reads and writes stands in its operands, in the order that the program of its unit
// (sim/program) gives them; operations of sharding work on the flat arrays of their target unit.

/// What an operation means. The executor dispatches on it.
enum class OpKind : std::uint8_t {
  // compute, forward and backward told apart by Op::phase
  kEmbedding,
  kNorm,
  kQkvProjection,
  kQProjection,
  kKProjection,
  kVProjection,
  kQkNorm,
  kRope,
  kAttention,
  kOutputProjection,
  kResidual,
  kGateUpProjection,
  kGateProjection,
  kUpProjection,
  kActivation,
  kDownProjection,
  kHeadProjection,
  kLoss,
  // of layers with experts and of GEMMs in fewer bits
  kRouter,
  kPermute,
  kQuantize,
  kAllToAll,
  // of recurrences and of gates on attention
  kRecurrenceProjection,
  kConvolution,
  kScan,
  kGate,
  // gradients of GEMMs are two operations
  kInputGradient,
  kWeightGradient,
  // sharding
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kSend,     // to another stage of the pipeline
  kReceive,  // from there
  kCastShard,
  kCastGradient,
  kConcatenate,
  kCopyIn,
  kCopyOut,
  kScale,
  kAccumulate,
  kZero,
  // step
  kGradientNorm,
  kClip,
  kOptimizer,
  kHostWork,
  kSynchronize
};
SHARDWRIGHT_WORDS(OpKind, kSynchronize, "embedding", "norm", "qkv_projection", "q_projection",
                  "k_projection", "v_projection", "qk_norm", "rope", "attention",
                  "output_projection", "residual", "gate_up_projection", "gate_projection",
                  "up_projection", "activation", "down_projection", "head_projection", "loss",
                  "router", "permute", "quantize", "all_to_all", "recurrence_projection",
                  "convolution", "scan", "gate", "input_gradient", "weight_gradient", "all_gather",
                  "reduce_scatter", "all_reduce", "broadcast", "send", "receive", "cast_shard",
                  "cast_gradient", "concatenate_gradients", "copy_in", "copy_out", "scale",
                  "accumulate", "zero", "gradient_norm", "clip", "optimizer", "host_work",
                  "synchronize");

/// Of a GEMM, by what it computes.
constexpr ProductLayout layout_of(OpKind kind) {
  return kind == OpKind::kInputGradient    ? ProductLayout::kNN
         : kind == OpKind::kWeightGradient ? ProductLayout::kTN
                                           : ProductLayout::kNT;
}

enum class Phase : std::uint8_t {
  kPrepare,
  kForward,
  kLoss,
  kRecompute,
  kBackward,
  kReduce,
  kOptimizer
};
SHARDWRIGHT_WORDS(Phase, kOptimizer, "prepare", "forward", "loss", "recompute", "backward",
                  "reduce", "optimizer");

/// Which of the costs applies to an operation's Work.
/// kTransfer: bytes that go beside kernels, to the host by a copy engine or, in the pipeline's
/// group, to a neighbouring stage.
enum class WorkKind : std::uint8_t {
  kNone,
  kGemm,
  kAttention,
  kMemory,
  kCollective,
  kHost,
  kTransfer
};

/// What a memory-bound kernel does: its share of the streaming bandwidth comes from the stack by
/// this name.
enum class MemoryClass : std::uint8_t { kStream, kCast, kConcatenate, kCopy, kScale, kAdd };

/// The amount of work. Only the fields of its kind mean anything.
struct Work {
  WorkKind kind = WorkKind::kNone;
  MemoryClass memory_class = MemoryClass::kStream;
  CommGroup group = CommGroup::kShard;
  std::uint8_t dtype_bytes = 2;
  std::uint16_t kernels = 1;  // launches
  bool backward = false;      // attention direction
  bool causal = true;
  float attended = 1;  // attention: scores computed over those of the mask alone, less with windows
  bool ordered = false;      // attention backward that keeps `bytes` of score gradients in memory
  bool bent_scores = false;  // attention with a cap or slopes
  std::int64_t m = 0, n = 0,
               k = 0;      // gemm; attention: m = batch*heads, n = sequence length, k = head_dim
  std::int64_t bytes = 0;  // memory and attention that keeps scores: HBM traffic; collective:
                           // gathered or unreduced size
  double efficiency = 1;   // memory: share of the streaming bandwidth; host: unused
  double host_s = 0;       // host work of its own, beyond launches
  // gemm
  Precision precision = Precision::kBf16;
  ProductLayout layout = ProductLayout::kNT;
  std::int64_t groups = 1;     // as many of that size, one for each expert
  double extra_bytes = 0;      // read and written beyond operands and result
  int starts = 1;              // kernels of it that begin one after another on the device
  bool on_fp32_cores = false;  // of eager attention: its GEMMs miss the tensor cores
  /// Of a collective over a shard group: what experts add, over the ranks that hold the same ones.
  std::int64_t expert_bytes = 0;
};

/// Event `name` as recorded for the unit at `offset` from the unit an operation runs for.
struct EventRef {
  std::uint8_t name = 0;  // index into Schedule::event_names; 0 is "no event"
  std::int16_t offset = 0;
  explicit operator bool() const { return name != 0; }
  bool operator==(const EventRef&) const = default;
};

inline constexpr int kMaxWaits = 4;
inline constexpr int kMaxInputs = 7;
inline constexpr int kMaxOutputs = 5;

/// Op::target of what works on the norm unit, wherever the operation itself runs. No other target
/// is that far away.
inline constexpr std::int8_t kNormUnit = 127;

struct Op {
  OpKind kind = OpKind::kHostWork;
  Phase phase = Phase::kForward;
  // For kInputGradient, kWeightGradient and the kAccumulate of a bias: the product they belong to.
  OpKind of = OpKind::kHostWork;
  std::uint8_t stream = 0;  // index into Schedule::streams
  // n-th piece of an operation that runs as several kernels; 1: a layer's second norm.
  std::uint8_t part = 0;
  std::int8_t target = 0;  // unit offset of what is gathered, reduced or cast, or kNormUnit
  // Of messages: the stage at the other end, and which of the messages between the two arrive in
  // the order in which they are sent.
  std::int16_t peer = -1;
  std::int16_t channel = -1;
  bool host_waits = false;  // the host blocks until `waits` have completed before it goes on
  Weight weight = Weight::kNone;
  Operand in[kMaxInputs];    // up to the first without a tensor
  Operand out[kMaxOutputs];  // likewise
  EventRef waits[kMaxWaits];
  EventRef record;
  Work work;
  Bytes temporary_bytes = 0;  // needed beside the operands while it runs

  // Of the lists of a unit, from which streams and events of a schedule follow.
  // Alone, where there is no work; with a GEMM: it runs inside in pieces.
  CollectiveWork collective;
  bool joins = false;  // waits for the collectives that are overlapped with what is before
  /// A weight gradient, which nothing later in a backward pass reads but what becomes of it; that,
  /// too.
  bool deferrable = false;
  bool keeps_high_precision = false;  // in bf16 whatever the plan's precision
  bool narrow_input = false;          // of a GEMM: what it reads is in the plan's precision already
  bool host_reads = false;            // the host reads a result before it issues what follows
  bool dynamic = false;               // sizes are the device's to say: no graph of layers holds it
  bool captured = false;              // a CUDA graph holds it: the host does not launch it
  bool in_attention = false;          // of a layer's first half, up to the second norm
  bool issued_with_others = false;    // by the Python that stands behind an operation beside it

  /// A collective of a unit that the compute stream waits for at once: it runs in line with
  /// kernels.
  bool in_line() const { return collective && collective.overlap == Overlap::kNone; }
};

/// With the other ranks of its Work's group, and does nothing else.
inline bool communicates(const Op& op) {
  return op.work.kind == WorkKind::kCollective || op.kind == OpKind::kSend ||
         op.kind == OpKind::kReceive;
}

/// A collective of a layer's own, on activations: with the other ranks of Op::collective's group.
inline bool moves_activations(const Op& op) {
  return static_cast<bool>(op.collective) && op.work.kind == WorkKind::kCollective;
}

/// Whether graphs of that scope hold the operation, so that the host does not launch it.
constexpr bool is_captured(const Op& op, CudaGraphs graphs) {
  switch (graphs) {
    case CudaGraphs::kNone:
      return false;
    case CudaGraphs::kAttention:
      return op.in_attention;
    case CudaGraphs::kRouter:
      return !op.in_attention && !op.dynamic;
    case CudaGraphs::kLayers:
      return !op.dynamic;
    case CudaGraphs::kStep:
      return true;
  }
  return false;
}
/// Operations of a unit in one direction, on one stream but for collectives that stand alone.
using Ops = std::vector<Op>;

constexpr bool is_collective(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter ||
         kind == OpKind::kAllReduce || kind == OpKind::kBroadcast;
}

// What a rank holds from step to step: the kinds of memory that a strategy may keep beside the
// activations. Schedules list them with their sizes, memory prediction adds them up, the executor
// allocates them.

/// What memory is used for, as predictions report it.
enum class MemoryCategory : std::uint8_t {
  kParameters,
  kMaster,
  kGradients,
  kOptimizer,
  kGatherBuffers,
  kGradientBuffers,
  kActivations,
  kLoss,
  kWorkspace
};
SHARDWRIGHT_WORDS(MemoryCategory, kWorkspace, "parameters", "master", "gradients", "optimizer",
                  "gather_buffers", "gradient_buffers", "activations", "loss", "workspace");
inline constexpr int kMemoryCategories = 9;

/// In the order in which they are allocated where a caching allocator does it.
enum class Persistent : std::uint8_t {
  kMaster,                  // parameters that the optimizer updates: the own share, or all
  kMoments,                 // first and second of Adam, of the same parameters
  kWholeParameters,         // in the compute type; the share that is the master apart
  kShardedParameters,       // the own share in the compute type: what is gathered
  kWholeGradients,          // sums over micro-batches
  kShardedGradients,        // likewise, of the own share
  kRotatingWeights,         // gathered units, in turn
  kGatheredWeights,         // gathered units, a place for each
  kTiedEmbeddingWeights,    // gathered embedding that the head uses, too
  kNormWeights,             // gathered norms of all layers
  kRotatingGradients,       // what backward writes, units in turn
  kTiedEmbeddingGradients,  // the head's part waits there for the embedding's, or is summed
  kNormGradients,           // of the norms of all layers
  kReductionBuffer,         // a unit's gradients in the type of the reduction
  kReducedShard,            // the own share of a reduction before it is added to the sum
  kGradientBuckets,         // of a framework
  kAllReduceBuckets,        // likewise
  kOptimizerPieces,         // of what the host keeps of the optimizer's state, on its way
  kWorkspace                // sim/core/workspace.h
};
inline constexpr int kPersistentKinds = 19;
std::string_view name_of(Persistent kind);
MemoryCategory category_of(Persistent kind);

/// A tensor that outlives the step: it is there before the first operation and after the last.
struct PersistentTensor {
  Persistent kind = Persistent::kMaster;
  Bytes bytes = 0;
  MemoryCategory category() const { return category_of(kind); }
};

// What a strategy says about the memory that outlives operations: what is divided, where gathered
// parameters and fresh gradients are kept, in which types sums are made. A strategy states it once
// (ShardingStrategy::declare); sim/core/placement.h turns it into bytes and addresses, for memory
// prediction and executor alike.

/// Parameters of each kind of unit, padded to a multiple of the shard group; 0: no such unit.
struct UnitSizes {
  std::int64_t embedding = 0, layer = 0, head = 0;
  std::int64_t norms = 0;  // of all layers, where a strategy keeps them apart
  // Of layers with experts, which the model's layers count, too: without their routed experts, and
  // those.
  std::int64_t moe_layers = 0, moe_layer = 0, experts = 0;
  // Of layers that have kinds, all together; `layer` and `moe_layer` are then the largest.
  std::int64_t mixed_layers = 0;
  // Of modules of multi-token prediction together, likewise.
  std::int64_t predictions = 0, prediction_experts = 0;
  // Of a head without parameters, because they are in the embedding's unit, that sums their
  // gradients for itself: as many as that unit has.
  std::int64_t head_gradient = 0;

  /// Of a pipeline's chunk or stage: the head may be another one's.
  bool in_parts = false;

  /// The head's weights belong to the embedding's unit, and both write one gradient.
  bool tied() const { return head == 0 && head_gradient == 0 && !in_parts; }
  /// Norms apart.
  std::int64_t largest() const { return std::max({embedding, layer, head}); }
  std::int64_t all_experts() const { return moe_layers * experts + prediction_experts; }
  std::int64_t total(std::int64_t layers) const {
    const std::int64_t of_layers =
        mixed_layers > 0 ? mixed_layers : (layers - moe_layers) * layer + moe_layers * moe_layer;
    return embedding + of_layers + predictions + head + norms;
  }
};

/// Gathered parameters, or what backward writes, of a step.
struct UnitBuffers {
  /// Units that have a place at once: they take turns. 0: they come and go (MemoryActions).
  std::int32_t count = 0;
  static constexpr std::int32_t kEveryUnit = -1;

  bool rotate() const { return count > 0; }
  bool every_unit() const { return count == kEveryUnit; }
};

struct ShardingFacts {
  Sharded shards = Sharded::kNothing;
  DType parameter_dtype = DType::kBf16;  // computed with and gathered
  DType reduce_dtype = DType::kFp32;
  DType master_dtype = DType::kFp32;
  DType moment_dtype = DType::kFp32;
  DType sum_dtype = DType::kFp32;  // of gradients over micro-batches
  double moment_bytes = 8;         // of all that is kept of a parameter beside its master
  /// Of a layer's parameter as it is kept to compute with: with copies in fewer bits, or quantized.
  /// 0: in parameter_dtype.
  double layer_parameter_bytes = 0;
  /// Of gradients that are kept beside their sums, in the type of the weights.
  double small_gradient_bytes = 0;
  /// Beside frozen parameters, those that are updated, and the own share of them; -1: all are.
  std::int64_t trained = -1, trained_owned = -1;
  std::int64_t largest_trained = 0;  // of a unit, beside frozen ones
  bool separates_norms = false;      // norms of all layers are a unit of their own
  bool keeps_optimizer = true;       // master and moments are on the device
  /// Beside the master there is, for the whole step, what is computed with: whole, or the share
  /// that is gathered.
  bool keeps_parameters = false;
  bool keeps_sums = false;  // sums of gradients are there for the whole step
  UnitBuffers weights;
  UnitBuffers gradients;
  /// Sums of whole gradients are added to by backward itself, as far as it writes a gradient in one
  /// piece: those of layers. Others have a buffer in which their pieces come together first.
  bool sums_in_backward = false;
  /// Sums are whole although shares would do: they are reduced once a step.
  bool sums_whole = false;
  /// A reduction's result has a place of its own before it is added to the sum.
  bool reduces_through_shard = false;
  Bytes gradient_bucket_bytes = 0;
  Bytes all_reduce_bucket_bytes = 0;
  Bytes workspace_bytes = 0;
  /// Tensors that the optimizer updates, for what launches kernels for each.
  std::int64_t update_tensors = 1;

  /// What is computed with has another type than what is updated.
  bool has_compute_copy() const { return parameter_dtype != master_dtype; }
  /// Sums are made of whole gradients, not of shares.
  bool sums_whole_gradients() const { return sums_whole || shards <= Sharded::kOptimizer; }
};

enum class StreamRole : std::uint8_t { kCompute, kCommunication, kSide };
SHARDWRIGHT_WORDS(StreamRole, kSide, "compute", "communication", "side");

struct Stream {
  const char* name = "";
  StreamRole role = StreamRole::kCompute;
  int priority = 0;             // of its kernels; lower runs first, as in CUDA
  int collective_priority = 0;  // of the stream that a communicator runs its kernels on
};

/// MemoryAction::offset of a release that covers the tensor of every unit.
inline constexpr std::int16_t kAllUnits = 0x7fff;

/// A tensor coming to life or dying at an operation, in host order.
struct MemoryAction {
  std::uint32_t op = 0;  // relative to the block's first; acts before the operation when acquiring,
                         // after it when releasing
  bool acquire = true;
  std::uint8_t stream = 0;      // the pool it is taken from (caching allocator)
  std::uint8_t used_on = 0xff;  // another stream that must be done with it before reuse; 0xff: none
  MemoryCategory category = MemoryCategory::kActivations;
  Tensor tensor = Tensor::kNone;
  std::int16_t offset = 0;  // unit it belongs to, relative to the block's unit
  Bytes bytes = 0;          // of the tensor, also when releasing
};

/// Operations [first_op, first_op + op_count) run for units first_unit, first_unit + unit_step, ...
/// `repeats` times.
struct Block {
  std::uint32_t first_op = 0;
  std::uint32_t op_count = 0;
  std::uint32_t first_action = 0;  // into Schedule::memory, sorted by op
  std::uint32_t action_count = 0;
  std::int32_t first_unit = 0;
  std::int32_t unit_step = 1;
  std::int32_t repeats = 1;
  Phase phase = Phase::kForward;
};

/// An entry of a step's program: neighbouring blocks one after the other, `repeats` times, each
/// time for the next micro-batch.
struct Section {
  std::uint32_t first_block = 0;
  std::uint32_t block_count = 0;
  std::int32_t repeats = 1;
  std::optional<Action> pass = std::nullopt;  // of a pipeline's stage: which one it is
};

/// Identity of one execution of an operation within a step: its position in the expanded host
/// order, of a pipeline after those of the stages before.
using OpId = std::int64_t;

struct Schedule {
  std::vector<Stream> streams;  // 0 is the compute stream
  std::vector<Op> ops;
  std::vector<MemoryAction> memory;
  std::vector<Block> blocks;
  std::vector<Section> sections;  // the program
  std::vector<PersistentTensor> persistent;
  std::vector<const char*> event_names;  // [0] is unused
  std::int64_t layers = 0;
  OpId first_id = 0;
  std::array<RankGroup, kCommGroups> groups{};
  Layout layout;  // of plans whose layers communicate
  ShardingFacts sharding;
  UnitSizes unit_sizes;
  /// Of a pipeline's stage: the layers of its chunks, as units of the model.
  struct UnitRange {
    std::int32_t first = 0, count = 0;
  };
  std::vector<UnitRange> stage_layers;

  const RankGroup& group(CommGroup kind) const { return groups[static_cast<std::size_t>(kind)]; }
  RankGroup& group(CommGroup kind) { return groups[static_cast<std::size_t>(kind)]; }
  std::int64_t shard_ranks() const { return group(CommGroup::kShard).size; }
  std::int64_t replicate_ranks() const { return group(CommGroup::kReplicate).size; }
  std::int64_t world_ranks() const { return group(CommGroup::kWorld).size; }
  /// Between which the state of routed experts is divided, where the other units' is.
  std::int64_t expert_shard_ranks() const {
    return shard_ranks() == 1 ? 1 : group(CommGroup::kExpertData).size;
  }

  std::int32_t units() const { return static_cast<std::int32_t>(layers) + 3; }
  std::int32_t head_unit() const { return static_cast<std::int32_t>(layers) + 1; }
  std::int32_t norm_unit() const { return static_cast<std::int32_t>(layers) + 2; }
  /// The unit that an operation of `unit` gathers, reduces or casts.
  std::int32_t target(const Op& op, std::int32_t unit) const {
    return op.target == kNormUnit ? norm_unit() : unit + op.target;
  }
  /// Parameters of a unit, padded to a multiple of the shard group.
  std::int64_t unit_elements(std::int32_t unit) const {
    if (unit == 0) return unit_sizes.embedding;
    if (unit == norm_unit()) return unit_sizes.norms;
    if (unit == head_unit()) return unit_sizes.head;
    return has_layer(unit) ? unit_sizes.layer : 0;
  }
  std::span<const Block> blocks_of(const Section& section) const {
    return {blocks.data() + section.first_block, section.block_count};
  }
  std::span<const Op> ops_of(const Block& block) const {
    return {ops.data() + block.first_op, block.op_count};
  }
  std::span<const MemoryAction> actions_of(const Block& block) const {
    return {memory.data() + block.first_action, block.action_count};
  }
  bool has_layer(std::int32_t unit) const {
    return stage_layers.empty() ||
           std::any_of(stage_layers.begin(), stage_layers.end(), [unit](const UnitRange& range) {
             return unit >= range.first && unit < range.first + range.count;
           });
  }
  void clear();
};

struct OpInstance {
  OpId id = 0;
  std::uint32_t section = 0;
  std::uint32_t op = 0;  // index into Schedule::ops
  std::uint32_t block = 0;
  std::int32_t unit = 0;
  std::int32_t micro_step = 0;
};

/// Calls f(const OpInstance&, const Op&) for every operation of the step in host order.
template <class F>
void for_each_op(const Schedule& schedule, F&& f) {
  OpInstance at;
  at.id = schedule.first_id;
  for (const Section& section : schedule.sections) {
    if (section.pass) at.micro_step = section.pass->micro_batch;
    for (std::int32_t micro = 0; micro < section.repeats; ++micro) {
      for (std::uint32_t b = 0; b < section.block_count; ++b) {
        at.block = section.first_block + b;
        const Block& block = schedule.blocks[at.block];
        for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
          at.unit = block.first_unit + rep * block.unit_step;
          for (std::uint32_t i = 0; i < block.op_count; ++i) {
            at.op = block.first_op + i;
            f(static_cast<const OpInstance&>(at), schedule.ops[at.op]);
            ++at.id;
          }
        }
      }
      ++at.micro_step;
    }
    ++at.section;
  }
}

/// Readable, stable name: "layer17.backward.down_projection.weight_gradient".
std::string describe(const Schedule& schedule, const OpInstance& instance);

/// "embedding", "layer17" (layers count from 0 in names), "head", "norms".
std::string unit_name(const Schedule& schedule, std::int32_t unit);

}  // namespace shardwright
