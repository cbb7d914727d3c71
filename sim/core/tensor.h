// SPDX-License-Identifier: Apache-2.0
// The tensors of a step, named once for everybody: programs of units (sim/program) say which of
// them an operation reads and writes, strategies what sharding adds, memory prediction how long
// each one lives, the executor where it lies.
//
// A tensor belongs to a unit (embedding, layer, head). An Operand is a tensor of the unit that an
// operation runs for, or of the one after it: the residual stream and its gradient are handed on
// from unit to unit.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwright {

struct Model;

enum class Tensor : std::uint8_t {
#define TENSOR(id, name, columns) id,
#include "sim/core/tensors.def"
#undef TENSOR
};
inline constexpr int kTensorCount = static_cast<int>(Tensor::kOffloaded) + 1;

constexpr std::size_t index_of(Tensor tensor) {
  return static_cast<std::size_t>(tensor);
}
constexpr bool is_weight_gradient(Tensor tensor) {
  return tensor >= Tensor::kWeightGradient0 && tensor <= Tensor::kWeightGradient23;
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
