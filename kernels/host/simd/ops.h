// SPDX-License-Identifier: Apache-2.0
// The functions that each instruction set compiles, by which simd/table.cc fills its table. The
// meaning of the arguments is told in kernels.h.
#pragma once

#include "kernels/host/simd/kernels.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

void gemm(Layout, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
          std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
          std::int64_t c_stride, bool add);

template <class T>
void widen(const T* in, float* out, std::int64_t n);
template <class T>
void narrow(const float* in, T* out, std::int64_t n);
template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n);
template <class T>
void accumulate(const T* in, float* sum, std::int64_t n);
template <class T>
void norm_forward(const NormForward<T>&, std::int64_t begin, std::int64_t end);
template <class T>
void norm_backward(const NormBackward<T>&, float* d_weight, std::int64_t begin, std::int64_t end);
template <class T>
void rope(const RopeRows<T>&, std::int64_t begin, std::int64_t end);
template <class T>
void activation_forward(Activation, const ActivationRows<T>&, std::int64_t begin, std::int64_t end);
template <class T>
void activation_backward(Activation, const ActivationRows<T>&, std::int64_t begin,
                         std::int64_t end);
template <class T>
void attention_forward(const AttentionForward<T>&, std::int64_t task, Scratch&);
template <class T>
void attention_delta(const AttentionBackward<T>&, std::int64_t begin, std::int64_t end);
template <class T>
void attention_backward_q(const AttentionBackward<T>&, std::int64_t task, Scratch&);
template <class T>
void attention_backward_kv(const AttentionBackward<T>&, std::int64_t task, Scratch&);

void cross_entropy(const CrossEntropyRows&, std::int64_t begin, std::int64_t end);
void vocabulary_statistics(const VocabularyRows&, VocabularyPart* parts, std::int64_t begin,
                           std::int64_t end);
void vocabulary_loss(const VocabularyRows&, const VocabularyParts&, bool gradient, double* losses,
                     std::int64_t begin, std::int64_t end);
void adamw(const AdamWNumbers&, const float* gradient, float* parameter, float* m, float* v,
           std::int64_t n);
BlockSquares block_squares(const float* x, std::int64_t n);
void random_words(const RandomStream&, std::uint64_t first, std::uint64_t count,
                  std::uint32_t* out);
void narrow_stochastic(const float* in, const std::uint32_t* random, int shift, BFloat16* out,
                       std::int64_t n);
std::uint32_t largest_magnitude(const float* x, std::int64_t n);
void to_fp8(Fp8Format, const float* in, float scale, std::uint8_t* out, std::int64_t n);
void from_fp8(Fp8Format, const std::uint8_t* in, float scale, float* out, std::int64_t n);

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
