// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/ops.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

template <class T>
TypedKernels<T> typed() {
  return {.widen = &widen<T>,
          .narrow = &narrow<T>,
          .add = &add<T>,
          .accumulate = &accumulate<T>,
          .norm_forward = &norm_forward<T>,
          .norm_backward = &norm_backward<T>,
          .rope = &rope<T>,
          .activation_forward = &activation_forward<T>,
          .activation_backward = &activation_backward<T>,
          .attention_forward = &attention_forward<T>,
          .attention_delta = &attention_delta<T>,
          .attention_backward_q = &attention_backward_q<T>,
          .attention_backward_kv = &attention_backward_kv<T>};
}

}  // namespace

Kernels make_kernels(Isa isa) {
  return {.isa = isa,
          .gemm = &gemm,
          .cross_entropy = &cross_entropy,
          .vocabulary_statistics = &vocabulary_statistics,
          .vocabulary_loss = &vocabulary_loss,
          .adamw = &adamw,
          .block_squares = &block_squares,
          .random_words = &random_words,
          .narrow_stochastic = &narrow_stochastic,
          .largest_magnitude = &largest_magnitude,
          .to_fp8 = &to_fp8,
          .from_fp8 = &from_fp8,
          .fp32 = typed<float>(),
          .bf16 = typed<BFloat16>()};
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
