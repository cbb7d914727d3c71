// SPDX-License-Identifier: Apache-2.0
// One operation of a step: what it is, which stream it runs on, what it waits for and how much work
// it is.
//
// An Op is a template: it belongs to a Block that may repeat over many units (layers), so it names
// events and tensors relative to the unit it runs for. The simulator gives an Op a duration, the
// executor gives it a kernel or a collective; both read the same fields. What an operation of the
// model reads and writes stands in its operands, in the order that the program of its unit
// (sim/program) gives them; operations of sharding work on the flat arrays of their target unit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/core/collective.h"
#include "sim/core/parallelism.h"
#include "sim/core/product_layout.h"
#include "sim/core/rank_group.h"
#include "sim/core/tensor.h"
#include "sim/core/units.h"

namespace shardwright {

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

std::string_view name_of(OpKind kind);
std::string_view name_of(Phase phase);
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

}  // namespace shardwright
