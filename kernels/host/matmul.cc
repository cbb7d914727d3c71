// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/matmul.h"

#include <algorithm>

#include "sim/core/base/check.h"
#include "sim/core/product_choices.h"

namespace shardwright::kernels::host {
namespace {

// Depth of one slice of bf16 operands while it is widened in scratch.
constexpr std::int64_t kSliceDepth = 256;

/// A [rows, cols] part of an operand as floats.
struct Operand {
  const float* data;
  std::int64_t stride;
};

Operand as_float(const Kernels&, Matrix<const float> m, std::int64_t row, std::int64_t col,
                 std::int64_t, std::int64_t, float*) {
  return {m.row(row) + col, m.stride};
}

Operand as_float(const Kernels& kernels, Matrix<const BFloat16> m, std::int64_t row,
                 std::int64_t col, std::int64_t rows, std::int64_t cols, float* buffer) {
  for (std::int64_t r = 0; r < rows; ++r) {
    kernels.bf16.widen(m.row(row + r) + col, buffer + r * cols, cols);
  }
  return {buffer, cols};
}

}  // namespace

template <class A, class B, class C>
void matmul(Parallel& parallel, Layout layout, Matrix<const A> a, Matrix<const B> b, Matrix<C> out,
            Store mode) {
  const bool a_transposed = layout == Layout::kTN;
  const bool b_transposed = layout == Layout::kNT;
  const std::int64_t m = out.rows, n = out.cols;
  const std::int64_t k = a_transposed ? a.rows : a.cols;
  SHARDWRIGHT_CHECK(
      (a_transposed ? a.cols : a.rows) == m && (b_transposed ? b.rows : b.cols) == n &&
          (b_transposed ? b.cols : b.rows) == k,
      "matmul of [{}, {}] and [{}, {}] into [{}, {}]", a.rows, a.cols, b.rows, b.cols, m, n);
  if (m == 0 || n == 0) return;
  const Kernels& kernels = parallel.kernels();
  constexpr bool kPlain =
      std::is_same_v<A, float> && std::is_same_v<B, float> && std::is_same_v<C, float>;
  const HostTiling tiling = host_tiling(layout, !kPlain, m, n, parallel.threads());

  parallel.run(tiling.down * tiling.across, [&](std::int64_t task, Scratch& scratch) {
    const std::int64_t row = task % tiling.down * tiling.tile.rows;
    const std::int64_t col = task / tiling.down * tiling.tile.cols;
    const std::int64_t rows = std::min(tiling.tile.rows, m - row);
    const std::int64_t cols = std::min(tiling.tile.cols, n - col);
    constexpr bool kRounds = !std::is_same_v<C, float>;
    const bool apart = kRounds || mode == Store::kAdd;
    float* result = nullptr;
    std::int64_t result_stride = cols;
    if (apart) {
      result = scratch.floats(rows * cols);
    } else if constexpr (!kRounds) {
      result = out.row(row) + col;
      result_stride = out.stride;
    }
    const std::int64_t depth_step = kPlain ? std::max<std::int64_t>(k, 1) : kSliceDepth;
    float* a_buffer = std::is_same_v<A, float> ? nullptr : scratch.floats(rows * kSliceDepth);
    float* b_buffer = std::is_same_v<B, float> ? nullptr : scratch.floats(cols * kSliceDepth);
    for (std::int64_t depth = 0; depth == 0 || depth < k; depth += depth_step) {
      const std::int64_t deep = std::min(depth_step, k - depth);
      const Operand left = a_transposed ? as_float(kernels, a, depth, row, deep, rows, a_buffer)
                                        : as_float(kernels, a, row, depth, rows, deep, a_buffer);
      const Operand right = b_transposed ? as_float(kernels, b, col, depth, cols, deep, b_buffer)
                                         : as_float(kernels, b, depth, col, deep, cols, b_buffer);
      kernels.gemm(layout, rows, cols, deep, left.data, left.stride, right.data, right.stride,
                   result, result_stride, depth > 0);
    }
    if (!apart) return;
    for (std::int64_t r = 0; r < rows; ++r) {
      C* to = out.row(row + r) + col;
      float* finished = result + r * cols;
      if constexpr (kRounds) {
        if (mode == Store::kAdd) kernels.of<C>().accumulate(to, finished, cols);
        kernels.of<C>().narrow(finished, to, cols);
      } else {
        kernels.fp32.accumulate(finished, to, cols);
      }
    }
  });
}

#define SHARDWRIGHT_INSTANTIATE(A, B, C)                                                        \
  template void matmul<A, B, C>(Parallel&, Layout, Matrix<const A>, Matrix<const B>, Matrix<C>, \
                                Store);
SHARDWRIGHT_INSTANTIATE(float, float, float)
SHARDWRIGHT_INSTANTIATE(float, float, BFloat16)
SHARDWRIGHT_INSTANTIATE(float, BFloat16, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
