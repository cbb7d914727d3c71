// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/matmul.h"

#include <algorithm>

#include "sim/core/check.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {
namespace {

// Large tiles are packed less often, small ones share the work better; multiples of 48 columns and
// 8 rows fit the register blocks of every instruction set.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileCols = 192;
constexpr std::int64_t kSmallTileRows = 64;
constexpr std::int64_t kSmallTileCols = 96;
constexpr std::int64_t kEnoughTiles = 16;
// Depth of one slice of bf16 operands while it is widened in scratch.
constexpr std::int64_t kSliceDepth = 256;

struct Tiling {
  std::int64_t rows, cols;
  std::int64_t down, across;
};

Tiling tiling_of(std::int64_t m, std::int64_t n) {
  Tiling tiling{kTileRows, kTileCols, ceil_div(m, kTileRows), ceil_div(n, kTileCols)};
  if (tiling.down * tiling.across < kEnoughTiles) {
    tiling = {kSmallTileRows, kSmallTileCols, ceil_div(m, kSmallTileRows),
              ceil_div(n, kSmallTileCols)};
  }
  return tiling;
}

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
  const Tiling tiling = tiling_of(m, n);

  parallel.run(tiling.down * tiling.across, [&](std::int64_t task, Scratch& scratch) {
    const std::int64_t row = task % tiling.down * tiling.rows;
    const std::int64_t col = task / tiling.down * tiling.cols;
    const std::int64_t rows = std::min(tiling.rows, m - row);
    const std::int64_t cols = std::min(tiling.cols, n - col);
    float* result = nullptr;
    std::int64_t result_stride = cols;
    bool add = mode == Store::kAdd;
    if constexpr (std::is_same_v<C, float>) {
      result = out.row(row) + col;
      result_stride = out.stride;
    } else {
      result = scratch.floats(rows * cols);
      add = false;
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
                   result, result_stride, add || depth > 0);
    }
    if constexpr (!std::is_same_v<C, float>) {
      for (std::int64_t r = 0; r < rows; ++r) {
        C* to = out.row(row + r) + col;
        if (mode == Store::kAdd) kernels.of<C>().accumulate(to, result + r * cols, cols);
        kernels.of<C>().narrow(result + r * cols, to, cols);
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
