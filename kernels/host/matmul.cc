// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/matmul.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/product_choices.h"
#include "sim/core/units.h"

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

// Products in fp8.

constexpr std::int64_t kFp8Rows = 16;
constexpr std::int64_t kFp8Chunk = 1024;  // of a row, in scratch
static_assert(kFp8Chunk % kFp8Block == 0);
constexpr std::int64_t kFp8Tile = 128;
constexpr std::int64_t kFp8Depth = 256;
static_assert(kFp8Depth % kFp8Block == 0);

/// What is quantised, as a product reads it: rows along which it adds.
template <class T>
struct ProductRows {
  Matrix<const T> from;
  bool transposed;

  /// [count, size] floats from row `row` and column `col` on.
  void load(const Kernels& kernels, std::int64_t row, std::int64_t count, std::int64_t col,
            std::int64_t size, float* to) const {
    if (!transposed) {
      for (std::int64_t r = 0; r < count; ++r)
        kernels.of<T>().widen(from.row(row + r) + col, to + r * size, size);
      return;
    }
    for (std::int64_t c = 0; c < size; ++c) {
      const T* at = from.row(col + c) + row;
      for (std::int64_t r = 0; r < count; ++r) to[r * size + c] = to_float(at[r]);
    }
  }
};

/// Calls body(first row, rows, first column, columns, floats) for what a task holds at a time.
template <class T, class Body>
void for_chunks(const Kernels& kernels, const ProductRows<T>& rows, const Fp8Matrix& to,
                std::int64_t begin, std::int64_t end, float* buffer, Body body) {
  for (std::int64_t col = 0; col < to.cols; col += kFp8Chunk) {
    const std::int64_t size = std::min(kFp8Chunk, to.cols - col);
    rows.load(kernels, begin, end - begin, col, size, buffer);
    body(col, size);
  }
}

void raise_to(std::atomic<std::uint32_t>& largest, std::uint32_t magnitude) {
  std::uint32_t known = largest.load(std::memory_order_relaxed);
  while (magnitude > known && !largest.compare_exchange_weak(known, magnitude)) {
  }
}

template <class T>
void quantize_tensor(Parallel& parallel, const ProductRows<T>& rows, const Fp8Matrix& to) {
  const Kernels& kernels = parallel.kernels();
  std::atomic<std::uint32_t> largest{0};
  parallel.for_ranges(
      to.rows, kFp8Rows, [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
        float* buffer = scratch.floats(kFp8Rows * kFp8Chunk);
        for_chunks(kernels, rows, to, begin, end, buffer, [&](std::int64_t, std::int64_t size) {
          raise_to(largest, kernels.largest_magnitude(buffer, (end - begin) * size));
        });
      });
  const float scale = tensor_scale(std::bit_cast<float>(largest.load()), to.format);
  to.floats()[0] = std::bit_cast<float>(largest.load());
  to.floats()[1] = inverse_scale(scale);
  parallel.for_ranges(
      to.rows, kFp8Rows, [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
        float* buffer = scratch.floats(kFp8Rows * kFp8Chunk);
        for_chunks(kernels, rows, to, begin, end, buffer, [&](std::int64_t col, std::int64_t size) {
          for (std::int64_t r = begin; r < end; ++r) {
            kernels.to_fp8(to.format, buffer + (r - begin) * size, scale,
                           to.codes + r * to.cols + col, size);
          }
        });
      });
}

template <class T>
void quantize_rows(Parallel& parallel, const ProductRows<T>& rows, const Fp8Matrix& to) {
  const Kernels& kernels = parallel.kernels();
  parallel.for_ranges(
      to.rows, kFp8Rows, [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
        float* buffer = scratch.floats(kFp8Rows * kFp8Chunk);
        std::uint32_t largest[kFp8Rows] = {};
        for_chunks(kernels, rows, to, begin, end, buffer, [&](std::int64_t, std::int64_t size) {
          for (std::int64_t r = 0; r < end - begin; ++r)
            largest[r] = std::max(largest[r], kernels.largest_magnitude(buffer + r * size, size));
        });
        float scale[kFp8Rows];
        for (std::int64_t r = 0; r < end - begin; ++r) {
          scale[r] = row_scale(std::bit_cast<float>(largest[r]), to.format);
          to.floats()[begin + r] = inverse_scale(scale[r]);
        }
        for_chunks(kernels, rows, to, begin, end, buffer, [&](std::int64_t col, std::int64_t size) {
          for (std::int64_t r = 0; r < end - begin; ++r) {
            kernels.to_fp8(to.format, buffer + r * size, scale[r],
                           to.codes + (begin + r) * to.cols + col, size);
          }
        });
      });
}

template <class T>
void quantize_blocks(Parallel& parallel, const ProductRows<T>& rows, const Fp8Matrix& to) {
  const Kernels& kernels = parallel.kernels();
  const std::int64_t blocks = to.cols / kFp8Block;
  // Scales of a tile that no block has.
  std::fill_n(to.exponents(), block_scales(to.rows, to.cols), std::uint8_t{0});
  parallel.for_ranges(
      to.rows, kFp8Rows, [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
        float* buffer = scratch.floats(kFp8Rows * kFp8Chunk);
        for_chunks(kernels, rows, to, begin, end, buffer, [&](std::int64_t col, std::int64_t size) {
          for (std::int64_t r = begin; r < end; ++r) {
            for (std::int64_t i = 0; i < size; i += kFp8Block) {
              const float* block = buffer + (r - begin) * size + i;
              const std::uint8_t exponent = block_exponent(
                  std::bit_cast<float>(kernels.largest_magnitude(block, kFp8Block)), to.format);
              to.exponents()[block_scale_index(r, (col + i) / kFp8Block, blocks)] = exponent;
              kernels.to_fp8(to.format, block, block_scale(exponent),
                             to.codes + r * to.cols + col + i, kFp8Block);
            }
          }
        });
      });
}

/// [rows, depth] of an operand as floats; those of blocks times what the blocks were divided by.
void widen(const Kernels& kernels, const Fp8Matrix& m, std::int64_t row, std::int64_t rows,
           std::int64_t col, std::int64_t depth, float* to) {
  for (std::int64_t r = row; r < row + rows; ++r, to += depth) {
    const std::uint8_t* codes = m.codes + r * m.cols + col;
    if (m.scaling != Fp8Scaling::kBlocks) {
      kernels.from_fp8(m.format, codes, 1, to, depth);
      continue;
    }
    for (std::int64_t i = 0; i < depth; i += kFp8Block) {
      const std::uint8_t exponent =
          m.exponents()[block_scale_index(r, (col + i) / kFp8Block, m.cols / kFp8Block)];
      kernels.from_fp8(m.format, codes + i, e8m0_to_float(exponent), to + i, kFp8Block);
    }
  }
}

/// Multiplies sums of row `row` and columns from `col` on by what the operands were divided by.
void unscale(const Fp8Matrix& a, const Fp8Matrix& b, std::int64_t row, std::int64_t col,
             std::int64_t cols, float* sums) {
  if (a.scaling == Fp8Scaling::kTensor) {
    const float factor = a.floats()[1] * b.floats()[1];
    for (std::int64_t c = 0; c < cols; ++c) sums[c] *= factor;
  } else if (a.scaling == Fp8Scaling::kRows) {
    const float left = a.floats()[row];
    const float* right = b.floats() + col;
    for (std::int64_t c = 0; c < cols; ++c) sums[c] = sums[c] * left * right[c];
  }
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

template <class T>
void quantize(Parallel& parallel, Matrix<const T> from, bool transposed, const Fp8Matrix& to) {
  SHARDWRIGHT_CHECK((transposed ? from.cols : from.rows) == to.rows &&
                        (transposed ? from.rows : from.cols) == to.cols,
                    "[{}, {}] into fp8 of [{}, {}]", from.rows, from.cols, to.rows, to.cols);
  const ProductRows<T> rows{from, transposed};
  switch (to.scaling) {
    case Fp8Scaling::kTensor:
      return quantize_tensor(parallel, rows, to);
    case Fp8Scaling::kRows:
      return quantize_rows(parallel, rows, to);
    case Fp8Scaling::kBlocks:
      break;
  }
  SHARDWRIGHT_CHECK(to.cols % kFp8Block == 0, "blocks of {} in rows of {}", kFp8Block, to.cols);
  quantize_blocks(parallel, rows, to);
}

template <class C>
void fp8_matmul(Parallel& parallel, const Fp8Matrix& a, const Fp8Matrix& b, Matrix<C> out,
                Store mode) {
  SHARDWRIGHT_CHECK(a.rows == out.rows && b.rows == out.cols && a.cols == b.cols &&
                        a.scaling == b.scaling && !a.turned && !b.turned,
                    "matmul of fp8 [{}, {}] and [{}, {}] into [{}, {}]", a.rows, a.cols, b.rows,
                    b.cols, out.rows, out.cols);
  const Kernels& kernels = parallel.kernels();
  const std::int64_t down = ceil_div(out.rows, kFp8Tile), across = ceil_div(out.cols, kFp8Tile);
  parallel.run(down * across, [&](std::int64_t task, Scratch& scratch) {
    const std::int64_t row = task % down * kFp8Tile, col = task / down * kFp8Tile;
    const std::int64_t rows = std::min(kFp8Tile, out.rows - row);
    const std::int64_t cols = std::min(kFp8Tile, out.cols - col);
    float* sums = scratch.floats(kFp8Tile * kFp8Tile);
    float* left = scratch.floats(kFp8Tile * kFp8Depth);
    float* right = scratch.floats(kFp8Tile * kFp8Depth);
    for (std::int64_t depth = 0; depth < a.cols; depth += kFp8Depth) {
      const std::int64_t deep = std::min(kFp8Depth, a.cols - depth);
      widen(kernels, a, row, rows, depth, deep, left);
      widen(kernels, b, col, cols, depth, deep, right);
      kernels.gemm(Layout::kNT, rows, cols, deep, left, deep, right, deep, sums, cols, depth > 0);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      float* finished = sums + r * cols;
      C* to = out.row(row + r) + col;
      unscale(a, b, row + r, col, cols, finished);
      if (mode == Store::kAdd) kernels.of<C>().accumulate(to, finished, cols);
      kernels.of<C>().narrow(finished, to, cols);
    }
  });
}

#define SHARDWRIGHT_INSTANTIATE(T)                                               \
  template void quantize<T>(Parallel&, Matrix<const T>, bool, const Fp8Matrix&); \
  template void fp8_matmul<T>(Parallel&, const Fp8Matrix&, const Fp8Matrix&, Matrix<T>, Store);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
