// SPDX-License-Identifier: Apache-2.0
// The tensors of a step, named once for everybody: programs of units (sim/program) say which of
// them an operation reads and writes, strategies what sharding adds, memory prediction how long
// each one lives, the executor where it lies.
//
// A tensor belongs to a unit (embedding, layer, head). An Operand is a tensor of the unit that an
// operation runs for, or of the one after it: the residual stream and its gradient are handed on
// from unit to unit.
//
// Shapes below: T tokens of a micro-batch, C hidden, Q = heads * head_dim, K = kv_heads * head_dim,
// F ffn, V vocabulary. Matrices are in the parameters' type unless they say otherwise.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwright {

struct Model;

enum class Tensor : std::uint8_t {
  kNone = 0,
  // Activations.
  kTokens,            // [T] token ids
  kX,                 // [T, C] residual stream that enters the unit
  kNorm1Saved0,       // what a stack's norm keeps beside input and output: up to two matrices ...
  kNorm1Saved1,       //
  kNorm1Saved2,       // ... and fp32 statistics of each token (rstd; mean where there is one)
  kNorm1Out,          // [T, C]
  kQkv,               // [T, Q + 2K] query, key and value heads side by side
  kQRaw,              // [T, Q] before what changes heads in place (norm, RoPE)
  kKRaw,              // [T, K]
  kQ,                 // [T, Q]
  kK,                 // [T, K]
  kV,                 // [T, K]
  kKRepeated,         // [T, Q] key heads, one for each query head
  kVRepeated,         // [T, Q]
  kProbabilities,     // [B * heads, S, S] scores in fp32 and their softmax
  kAttentionOut,      // [T, Q]
  kAttentionStats,    // fp32 [T, heads] log of the sum of exponents
  kQkNormSaved,       // fp32 [T, heads + kv_heads] rstd of each head
  kProjected,         // [T, C] where the residual is added by a kernel of its own
  kXMid,              // [T, C] residual stream between attention and MLP
  kNorm2Saved0,       // as of the first norm
  kNorm2Saved1,       //
  kNorm2Saved2,       //
  kNorm2Out,          // [T, C]
  kGateUp,            // [T, 2F] gate and up side by side
  kGate,              // [T, F]
  kUp,                // [T, F]
  kActivationSaved0,  // what a stack's activation keeps beside input and output
  kActivationSaved1,  //
  kActivationOut,     // [T, F]
  kDown,              // [T, C] where the residual is added by a kernel of its own
  kLogits,            // [T, V], or those of a chunk of tokens
  kLogitsFloat,       // fp32 [T, V]
  kLossSaved0,        // what a stack's loss keeps
  kLossSaved1,        //
  // Their gradients.
  kDX,            // [T, C]
  kDActivation,   // [T, F]
  kDGateUp,       // [T, 2F]; [T, F] without gate
  kDNorm2,        // [T, C]
  kDXMid,         // [T, C]
  kDAttention,    // [T, Q]
  kDQkv,          // [T, Q + 2K]
  kDNorm1,        // [T, C]
  kDLogits,       // [T, V]
  kDLogitsFloat,  // fp32 [T, V]
  // Gradients of the unit's weights, numbered as backward makes them.
  kWeightGradient0,
  kWeightGradientLast = kWeightGradient0 + 7,
  // What one operation needs while it runs.
  kTemporary,
  // What sharding adds: flat arrays of a unit's parameters and gradients, whole or the own share.
  kGathered,            // whole parameters
  kGatherOutput,        // what a gather writes where parameters are copied out of it
  kCastedShard,         // share, in the compute type
  kSecondaryShard,      // share within a smaller group, kept from forward to backward
  kFlatGradient,        // whole
  kReduceInput,         // whole, in the type of the reduction
  kReduceOutput,        // share, likewise
  kShardGradient,       // share: the sum over micro-batches
  kFullGradient,        // whole: the sum over micro-batches
  kOptimizerTemporary,  // of the update
  kKeyValueCache        // [T, 2K] keys and values that outlive a checkpointed layer's forward pass
};
inline constexpr int kTensorCount = static_cast<int>(Tensor::kKeyValueCache) + 1;

constexpr std::size_t index_of(Tensor tensor) {
  return static_cast<std::size_t>(tensor);
}
constexpr bool is_weight_gradient(Tensor tensor) {
  return tensor >= Tensor::kWeightGradient0 && tensor <= Tensor::kWeightGradientLast;
}

/// Stable: traces and tests name tensors so.
std::string_view name_of(Tensor tensor);

/// Elements that the tensor has for each token, in the parameters' type; 0 where a stack decides
/// (what kernels save) or where it is not a matrix of tokens.
std::int64_t columns_of(Tensor tensor, const Model& model);

/// A tensor that an operation reads or writes.
struct Operand {
  Tensor tensor = Tensor::kNone;
  std::int8_t offset = 0;  // of its unit from the one that the operation runs for

  constexpr Operand() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a tensor of the own unit is the ordinary case
  constexpr Operand(Tensor of_own_unit, std::int8_t unit_offset = 0)
      : tensor(of_own_unit), offset(unit_offset) {}
  explicit constexpr operator bool() const { return tensor != Tensor::kNone; }
  bool operator==(const Operand&) const = default;
};

constexpr Operand of_next_unit(Tensor tensor) {
  return {tensor, 1};
}

class TensorSet {
 public:
  bool test(Tensor tensor) const { return bits_.test(index_of(tensor)); }
  void set(Tensor tensor, bool value = true) { bits_.set(index_of(tensor), value); }
  void reset(Tensor tensor) { bits_.reset(index_of(tensor)); }
  void clear() { bits_.reset(); }
  /// What is in this set and not in `other`.
  TensorSet without(const TensorSet& other) const {
    TensorSet rest = *this;
    rest.bits_ &= ~other.bits_;
    return rest;
  }
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < bits_.size(); ++i) {
      if (bits_.test(i)) f(static_cast<Tensor>(i));
    }
  }

 private:
  std::bitset<kTensorCount> bits_;
};

/// The parameter that an operation multiplies with, or whose gradient it makes. What a stack packs
/// into one product (query, key and value; gate and up) is one weight there.
enum class Weight : std::uint8_t {
  kNone,
  kEmbedding,  // [V, C]
  kNorm1,      // [C]
  kQkv,        // [Q + 2K, C]
  kQuery,      // [Q, C]
  kKey,        // [K, C]
  kValue,      // [K, C]
  kQkNorm,     // [head_dim] for query heads, another one for key heads
  kOutput,     // [C, Q]
  kNorm2,      // [C]
  kGateUp,     // [2F, C]
  kGate,       // [F, C]
  kUp,         // [F, C]
  kDown,       // [C, F]
  kFinalNorm,  // [C]
  kHead,       // [V, C]; the embedding's where they are tied
  // Of models that are planned only, and of layouts of the model (sim/core/local_shape.h): E
  // experts of a layer, Fe channels of one, Fs of the shared ones together, R a latent vector's.
  kPositions,         // [positions, C]
  kSinks,             // [heads]
  kQueryDown,         // [R, C] latent attention ...
  kQueryUp,           // [Q, R]
  kKeyValueDown,      // [R + rotated part of a key, C]
  kKeyValueUp,        // [heads * (rest of a key + value), R]
  kLatentNorm,        // [R]
  kRouter,            // [E, C]
  kExpertGate,        // E of [Fe, C]
  kExpertUp,          // E of [Fe, C]
  kExpertDown,        // E of [C, Fe]
  kSharedGate,        // [Fs, C]
  kSharedUp,          // [Fs, C]
  kSharedDown,        // [C, Fs]
  kSharedExpertsGate  // [1, C] how much the shared experts weigh
};
inline constexpr int kWeightKinds = static_cast<int>(Weight::kSharedExpertsGate) + 1;

}  // namespace shardwright
