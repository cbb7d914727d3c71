// SPDX-License-Identifier: Apache-2.0
// The inner loops of the host operations, one table of them per instruction set.
//
// A kernel works on a range of rows or one tile, on one thread; what it needs to know comes in a
// small struct of pointers and sizes. The operations in kernels/host check shapes, cut the work
// into tasks and call these.
#pragma once

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "kernels/random.h"
#include "sim/core/model.h"
#include "sim/core/product_choices.h"

namespace shardwright::kernels::host {

class Scratch;

using Layout = ProductLayout;

template <class T>
struct RopeRows {
  T* x;
  const float* cosine;  // [positions, pairs]
  const float* sine;
  const std::int32_t* positions;  // [tokens]; null: token % seq
  std::int64_t seq;
  std::int64_t pairs;  // half of the rotated part of a head
  float direction;     // 1 forward, -1 backward
  Rows rows;
};

template <class T>
struct ActivationRows {
  const T* gate;  // null without gate
  const T* up;
  const T* d_y;
  T* y;
  T* d_gate;
  T* d_up;
  std::int64_t in_stride;   // of gate, up, d_gate, d_up
  std::int64_t out_stride;  // of y, d_y
  std::int64_t cols;
};

template <class T>
struct AttentionInputs {
  AttentionShape shape;
  const T* q;
  const T* k;
  const T* v;
  std::int64_t q_stride, kv_stride, out_stride;  // from token to token, in elements
  const std::int32_t* first_key;                 // [tokens]; null: 0
  const float* slopes;                           // [heads] of ALiBi; null: none
};

template <class T>
struct AttentionForward {
  AttentionInputs<T> in;
  T* out;
  float* lse;  // [B, H, T]
};

template <class T>
struct AttentionBackward {
  AttentionInputs<T> in;
  const T* out;
  const float* lse;
  const T* d_out;
  float* delta;  // [B, H, T], the sum of d_out * out over a head
  T* d_q;
  T* d_k;
  T* d_v;
};

struct CrossEntropyRows {
  float* logits;  // [rows, vocab]
  const std::int32_t* targets;
  std::int32_t ignore_index;
  std::int64_t vocab;
  bool gradient;   // logits become the gradient of the sum of losses
  float softcap;   // 0: none
  double* losses;  // [rows], 0 where ignored
};

struct VocabularyRows {
  float* logits;  // [rows, cols]
  std::int64_t stride;
  std::int64_t cols;
  const std::int32_t* targets;
  std::int32_t ignore_index;
  std::int64_t first_vocab;  // the token of column 0
  float softcap;             // 0: none
};

struct AdamWNumbers {
  float keep, beta1, beta1_rest, beta2, beta2_rest, step_size, root_correction, eps, grad_scale;
};

/// The squares of a block of floats, in three sums of doubles without any rounding. When `exact` is
/// false the block holds numbers too far apart, infinity or NaN, and the sums mean nothing.
struct BlockSquares {
  double sums[3];
  bool exact;
};
inline constexpr std::int64_t kSquaresBlock = 1024;

/// The tiles of attention: query rows (tokens times the heads of a group) and keys.
inline constexpr std::int64_t kQueryRows = 128;
inline constexpr std::int64_t kKeyRows = 64;
inline constexpr std::int64_t kMaxHeadDim = 256;

template <class T>
struct TypedKernels {
  void (*widen)(const T* in, float* out, std::int64_t n);
  void (*narrow)(const float* in, T* out, std::int64_t n);
  void (*add)(const T* a, const T* b, T* out, std::int64_t n);
  void (*accumulate)(const T* in, float* sum, std::int64_t n);
  void (*norm_forward)(const NormForward<T>&, std::int64_t begin, std::int64_t end);
  /// d_weight[cols] is the sum over the rows of the call.
  void (*norm_backward)(const NormBackward<T>&, float* d_weight, std::int64_t begin,
                        std::int64_t end);
  void (*rope)(const RopeRows<T>&, std::int64_t begin, std::int64_t end);
  void (*activation_forward)(Activation, const ActivationRows<T>&, std::int64_t begin,
                             std::int64_t end);
  void (*activation_backward)(Activation, const ActivationRows<T>&, std::int64_t begin,
                              std::int64_t end);
  void (*attention_forward)(const AttentionForward<T>&, std::int64_t task, Scratch&);
  void (*attention_delta)(const AttentionBackward<T>&, std::int64_t begin, std::int64_t end);
  void (*attention_backward_q)(const AttentionBackward<T>&, std::int64_t task, Scratch&);
  void (*attention_backward_kv)(const AttentionBackward<T>&, std::int64_t task, Scratch&);
};

struct Kernels {
  /// C = A B, or C += A B; strides in floats between rows.
  void (*gemm)(Layout, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
               std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
               std::int64_t c_stride, bool add);
  void (*cross_entropy)(const CrossEntropyRows&, std::int64_t begin, std::int64_t end);
  void (*vocabulary_statistics)(const VocabularyRows&, VocabularyPart* parts, std::int64_t begin,
                                std::int64_t end);
  /// `losses` may be null.
  void (*vocabulary_loss)(const VocabularyRows&, const VocabularyParts&, bool gradient,
                          double* losses, std::int64_t begin, std::int64_t end);
  void (*adamw)(const AdamWNumbers&, const float* gradient, float* parameter, float* m, float* v,
                std::int64_t n);
  /// At most kSquaresBlock floats.
  BlockSquares (*block_squares)(const float* x, std::int64_t n);
  void (*random_words)(const RandomStream&, std::uint64_t first, std::uint64_t count,
                       std::uint32_t* out);
  /// Rounds stochastically with the 16 bits of random[i] from bit `shift` on.
  void (*narrow_stochastic)(const float* in, const std::uint32_t* random, int shift, BFloat16* out,
                            std::int64_t n);
  /// The bits of the largest |x|; a NaN is larger than all numbers.
  std::uint32_t (*largest_magnitude)(const float* x, std::int64_t n);
  /// Rounds `scale` times the numbers.
  void (*to_fp8)(Fp8Format, const float* in, float scale, std::uint8_t* out, std::int64_t n);
  void (*from_fp8)(Fp8Format, const std::uint8_t* in, float scale, float* out, std::int64_t n);
  TypedKernels<float> fp32;
  TypedKernels<BFloat16> bf16;

  template <class T>
  const TypedKernels<T>& of() const;
};

template <>
inline const TypedKernels<float>& Kernels::of<float>() const {
  return fp32;
}
template <>
inline const TypedKernels<BFloat16>& Kernels::of<BFloat16>() const {
  return bf16;
}

}  // namespace shardwright::kernels::host
