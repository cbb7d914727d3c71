// The operations of one unit (embedding, layer, head) as a stack executes them, with the tensors
// they read, write and keep for backward.
//
// The idea: a unit is a small dataflow program. Forward operations name their input and output
// tensors; backward operations name the tensors they need. Which tensors survive from forward to
// backward is the recompute policy: what is needed and was not kept is produced again, by exactly
// those forward operations that lead from kept tensors to it. Lifetimes follow from first and last
// use, so memory is liveness over the same operations that are costed. Sharding knows nothing of
// this; strategies put their gathers and reductions around a unit (sim/strategies/).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/op.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"

namespace shardwright::sim {

/// Tensors of a unit. Activations first, gradients after, then what sharding adds.
enum Tensor : std::uint16_t {
  kNoTensor = 0,
  kTokens,
  kX,  // residual stream entering the unit, (B*T, C)
  kNorm1Saved0,
  kNorm1Saved1,
  kNorm1Saved2,
  kNorm1Out,
  kQkv,
  kQRaw,
  kKRaw,
  kQ,
  kK,
  kV,
  kKRepeated,
  kVRepeated,
  kProbabilities,
  kAttentionOut,
  kAttentionStats,
  kQkNormSaved,
  kProjected,
  kXMid,
  kNorm2Saved0,
  kNorm2Saved1,
  kNorm2Saved2,
  kNorm2Out,
  kGateUp,
  kGate,
  kUp,
  kActivationSaved0,
  kActivationSaved1,
  kActivationOut,
  kDown,
  kLogits,
  kLogitsFloat,
  kLossSaved0,
  kLossSaved1,
  kDX,
  kDActivation,
  kDGateUp,
  kDNorm2,
  kDXMid,
  kDAttention,
  kDQkv,
  kDNorm1,
  kDLogits,
  kDLogitsFloat,
  kWeightGradient0,
  kWeightGradientLast = kWeightGradient0 + 7,
  kTemporary,
  kGathered,
  kGatherOutput,
  kCastedShard,
  kFlatGradient,
  kReduceInput,
  kReduceOutput,
  kShardGradient,
  kFullGradient,
  kOptimizerTemporary,
  kTensorCount
};
const char* tensor_name(std::uint16_t tensor);

struct ProgramOp {
  Op op;
  std::array<std::uint16_t, 6> in{};   // tensors read; 0 terminated
  std::array<std::uint16_t, 5> out{};  // tensors written
  Bytes temporary_bytes = 0;           // alive while the operation runs
};

/// Where kX and kDX of the next unit are written, out tensors carry this bit (the unit at offset
/// +1).
inline constexpr std::uint16_t kNextUnit = 0x8000;

struct ProgramTensor {
  Bytes bytes = 0;
  MemoryCategory category = MemoryCategory::kActivations;
};

/// The operations of one unit in one direction, with lifetimes.
struct UnitPass {
  std::vector<Op> ops;
  std::vector<MemoryAction> memory;  // op indices local to this pass
};

/// All passes of the three kinds of unit for one (model, plan shape, stack). Independent of the
/// strategy and of the number of GPUs, so that a search builds it once for many plans.
class LayerPrograms {
 public:
  LayerPrograms(const Model& model, const Plan& plan, const Stack& stack);

  const UnitPass& embedding_forward() const { return embedding_forward_; }
  const UnitPass& embedding_backward() const { return embedding_backward_; }
  const UnitPass& layer_forward(bool checkpointed) const { return layer_forward_[checkpointed]; }
  const UnitPass& layer_backward(bool checkpointed) const { return layer_backward_[checkpointed]; }
  const UnitPass& head_forward() const { return head_forward_; }
  const UnitPass& head_backward() const { return head_backward_; }

  /// Sum of bytes that one layer keeps between forward and backward, without its input.
  Bytes layer_saved_bytes(bool checkpointed) const { return layer_saved_[checkpointed]; }
  Bytes residual_bytes() const { return tensors_[kX].bytes; }

 private:
  friend class ProgramBuilder;
  std::array<ProgramTensor, kTensorCount> tensors_{};
  UnitPass embedding_forward_, embedding_backward_, head_forward_, head_backward_;
  UnitPass layer_forward_[2], layer_backward_[2];
  Bytes layer_saved_[2] = {0, 0};
};

}  // namespace shardwright::sim
