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

#include <array>
#include <bit>
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
  kLossParts,         // fp32 [leaves, tokens of a chunk, 3] of the loss, by part of V
  kLayerSaved,        // what software keeps of a layer beyond what its kernels read
  // What model-parallel ranks share. T' tokens between the matrices, R rows of experts, E experts,
  // Fe channels of one, Fs of the shared ones, L a latent vector's.
  kNorm1Gathered,        // [T, C] of all tensor ranks' tokens
  kNorm2Gathered,        // [T, C]
  kPartialSum,           // [T, C] of a row-parallel GEMM, before the tensor ranks' are added up
  kContextInput,         // keys and values, or what is exchanged for heads, of other context ranks
  kQueryLatent,          // [T', L] latent attention ...
  kQueryLatentNorm,      // [T', L]
  kQueryLatentGathered,  // [T, L]
  kKeyLatent,            // [T', L] with the rotated part of the key
  kKeyLatentNorm,        // [T', L]
  kKeyLatentGathered,    // [T, L]
  kAttentionCast,        // [T, Q] in the fewer bits that the output projection reads
  kKeyValueUp,           // [T, heads * (rest of a key + value)]
  kRouterScores,         // fp32 [T', E]
  kRowsSent,             // rows of tokens in the order of the experts' ranks
  kRowsArrived,          // of all ranks
  kRows,                 // [R, C] in the order of the experts
  kExpertUp,             // [R, 2Fe]; [R, Fe] without gate
  kExpertActivation,     // [R, Fe]
  kExpertOut,            // [R, C]
  kRowsReturned,         // rows of this rank's tokens
  kExpertsOut,           // [T', C]
  kSharedUp,             // [T, 2Fs]; [T, Fs] without gate
  kSharedActivation,     // [T, Fs]
  // Of recurrences: V and K channels of values and keys, h numbers of heads.
  kRecurrentIn,         // [T, 2V + 2K + h]
  kRecurrentConvolved,  // [T, V + 2K]
  kRecurrentLatent,     // [T, L] what steps, or decays and gates, are made of ...
  kRecurrentUp,         // [T, K + V] ... and these; Mamba: [T, V]
  kRecurrentExchanged,  // of kRecurrentIn the heads of this context rank, of all their tokens
  kRecurrentOut,        // [T, V]
  kRecurrentGated,      // [T, V]
  kRecurrentProjected,  // [T, C] beside attention
  kExpertLatent,        // [T', L] of tokens on their way to experts
  kExpertLatentOut,     // [T', L] and back
  kAttentionGate,       // [T, Q]
  kGatedAttention,      // [T, Q]
  // Their gradients.
  kDX,                   // [T, C]
  kDActivation,          // [T, F]
  kDGateUp,              // [T, 2F]; [T, F] without gate
  kDNorm2,               // [T, C]
  kDXMid,                // [T, C]
  kDAttention,           // [T, Q]
  kDQkv,                 // [T, Q + 2K]
  kDNorm1,               // [T, C]
  kDLogits,              // [T, V]
  kDLogitsFloat,         // fp32 [T, V]
  kDGathered,            // [T, C] of the unit's output, of all tensor ranks' tokens
  kDGatheredMid,         // [T, C] of the attention's
  kDNormSum,             // [T', C] of a norm's output, the tensor ranks' added up
  kNormGradients,        // of the unit's norms, from the own tokens or heads alone
  kKeyValueGradients,    // of the weights of key/value heads that tensor ranks share, of all heads
  kDLatent,              // [T, L], of either latent vector
  kDExpertOut,           // [R, C]
  kDRows,                // [R, C]
  kDExpertActivation,    // [R, Fe]
  kDExpertUp,            // as kExpertUp
  kDSharedActivation,    // [T, Fs]
  kDSharedUp,            // as kSharedUp
  kDRecurrentIn,         // [T, 2V + 2K + h]
  kDRecurrentConvolved,  // [T, V + 2K]
  kDRecurrentLatent,     // [T, L]
  kDRecurrentUp,         // [T, K + V]
  kDExpertLatent,        // [T', L]
  kDRecurrentOut,        // [T, V]
  kDRecurrentGated,      // [T, V]
  // Gradients of the unit's weights, numbered as backward makes them.
  kWeightGradient0,
  kWeightGradientLast = kWeightGradient0 + 23,
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
  kKeyValueCache,       // [T, 2K] keys and values that outlive a checkpointed layer's forward pass
  kOffloaded  // of a layer's kept tensors, what the host has meanwhile: released before acquired
};
inline constexpr int kTensorCount = static_cast<int>(Tensor::kOffloaded) + 1;

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
  bool test(Tensor tensor) const { return (words_[word_of(tensor)] & bit_of(tensor)) != 0; }
  void set(Tensor tensor, bool value = true) {
    if (value) {
      words_[word_of(tensor)] |= bit_of(tensor);
    } else {
      reset(tensor);
    }
  }
  void reset(Tensor tensor) { words_[word_of(tensor)] &= ~bit_of(tensor); }
  void clear() { words_ = {}; }
  /// What is in this set and not in `other`.
  TensorSet without(const TensorSet& other) const {
    TensorSet rest = *this;
    for (std::size_t word = 0; word < words_.size(); ++word)
      rest.words_[word] &= ~other.words_[word];
    return rest;
  }
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t word = 0; word < words_.size(); ++word) {
      for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1)
        f(static_cast<Tensor>(64 * word + static_cast<std::size_t>(std::countr_zero(bits))));
    }
  }

 private:
  static constexpr std::size_t word_of(Tensor tensor) { return index_of(tensor) / 64; }
  static constexpr std::uint64_t bit_of(Tensor tensor) {
    return std::uint64_t{1} << (index_of(tensor) % 64);
  }

  std::array<std::uint64_t, (kTensorCount + 63) / 64> words_{};
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
  kPositions,          // [positions, C]
  kSinks,              // [heads]
  kQueryDown,          // [R, C] latent attention ...
  kQueryUp,            // [Q, R]
  kKeyValueDown,       // [R + rotated part of a key, C]
  kAttentionCast,      // [T, Q] in the fewer bits that the output projection reads
  kKeyValueUp,         // [heads * (rest of a key + value), R]
  kLatentNorm,         // [R]
  kRouter,             // [E, C]
  kExpertGate,         // E of [Fe, C]
  kExpertUp,           // E of [Fe, C]
  kExpertDown,         // E of [C, Fe]
  kSharedGate,         // [Fs, C]
  kSharedUp,           // [Fs, C]
  kSharedDown,         // [C, Fs]
  kSharedExpertsGate,  // [1, C] how much the shared experts weigh
  kRecurrentIn,        // [2V + 2K + h, C]
  kConvolution,        // [V + 2K, taps]
  kRecurrentHeads,     // a few numbers a head
  kRecurrentDown,      // [L, C]; Mamba: [L, V]
  kRecurrentUp,        // [K + V, R]; Mamba: [V, R]
  kRecurrentNorm,
  kRecurrentOut,      // [C, V]
  kExpertLatentDown,  // [L, C]
  kExpertLatentUp,    // [C, L]
  kHeadGate           // [heads, C]
};
inline constexpr int kWeightKinds = static_cast<int>(Weight::kHeadGate) + 1;

}  // namespace shardwright
