// SPDX-License-Identifier: Apache-2.0
// A unit's operations as a small dataflow program: operations that name the tensors they read and
// write.
//
// From such a program follow, without any further description: what must survive from forward to
// backward under a recompute policy, which operations produce the rest again, and when every tensor
// comes to life and dies. layer_program.h writes the programs of embedding, layer and head.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/op.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"

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

using TensorSet = std::bitset<kTensorCount>;
using ProgramTensors = std::array<ProgramTensor, kTensorCount>;

constexpr std::uint16_t slot_of(std::uint16_t tensor) {
  return static_cast<std::uint16_t>(tensor & ~kNextUnit);
}

/// What `plan` keeps of a layer whose backward needs `needed` (its input included), `forward` being
/// the layer's forward operations.
TensorSet kept_tensors(const Model& model, const Plan& plan, const std::vector<ProgramOp>& forward,
                       const TensorSet& needed, const ProgramTensors& tensors);

/// The forward operations that lead from kept tensors to the needed ones that were not kept.
std::vector<ProgramOp> recomputation(const std::vector<ProgramOp>& forward, const TensorSet& needed,
                                     const TensorSet& kept);

/// Turns a program into operations and memory actions. `alive` exist before the pass and belong to
/// it; `kept` survive it. kX is owned by the forward pass of its unit; dX of the next unit by the
/// backward pass.
UnitPass with_lifetimes(const std::vector<ProgramOp>& program, const ProgramTensors& tensors,
                        const TensorSet& alive, const TensorSet& kept, bool backward);

}  // namespace shardwright::sim
