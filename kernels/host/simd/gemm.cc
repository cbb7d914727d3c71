// SPDX-License-Identifier: Apache-2.0
// GEMMs of row-major matrices.
//
// C is made in blocks of 6 rows and up to kBlockVectors registers of columns, whose sums stay in
// registers while they run over a slice of the depth; the next slice adds to C. A slice of B is
// laid out first as the registers will read it (a panel) and serves all rows; A is read where it
// stands, except where its rows are the depth. Eigen, whose kernel is as fast, lays out A anew for
// each block of columns, which took a quarter of a training step.
//
// An element is summed in the order of the depth, in slices of kSliceDepth, by fused
// multiply-adds: its bits depend on nothing but its row of A and its column of B.
#include <algorithm>
#include <cstdint>

#include "kernels/host/simd/kernels.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

constexpr int kBlockRows = 6;
// 24 sums, a row of B and an element of A fill 32 registers; 12 of them 16.
constexpr int kBlockVectors = kWidth == 16 ? 4 : 2;
constexpr int kPanelCols = kBlockVectors * kWidth;
static_assert(kWidth != kHostRegisterCols || kPanelCols == kHostPanelCols);
// A panel of 64 columns takes 32 KiB, which stay in the first cache.
constexpr std::int64_t kSliceDepth = 128;
// Rows of A that are laid out at a time where they stand in columns, so that all of a tile of
// matmul is.
constexpr std::int64_t kLaidOutRows = 258;

struct Left {
  const float* data;
  std::int64_t row_stride, depth_stride;
  std::int64_t block_stride;  // from kBlockRows rows to the next
};

struct Result {
  float* data;
  std::int64_t stride;
  bool add;
};

template <class Lanes>
SHARDWRIGHT_INLINE void put(float* out, Vec sum, bool add, Lanes lanes) {
  store(out, add ? load(out, lanes) + sum : sum, lanes);
}

/// Rows [0, kRows) and kVectors registers of columns; of the last register `lanes` are in use.
template <int kRows, int kVectors, class Lanes>
SHARDWRIGHT_INLINE void multiply_block(std::int64_t depth, const Left& a, const float* panel,
                                       const Result& c, Lanes lanes) {
  Vec sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = splat(0.0f);
  }
  const float* row[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) row[r] = a.data + r * a.row_stride;
  const std::int64_t depth_stride = a.depth_stride, block_stride = a.block_stride;
  for (std::int64_t end = 0; end < depth;) {
    // The next rows come while these are multiplied, a cache line of each at a time.
    const std::int64_t begin = end;
    end = std::min(depth, begin + 16);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) __builtin_prefetch(row[r] + block_stride);
    for (std::int64_t p = begin; p < end; ++p) {
      Vec right[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) right[v] = load(panel + v * kWidth, All{});
      panel += kPanelCols;
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Vec left = splat(*row[r]);
        row[r] += depth_stride;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = madd(left, right[v], sum[r][v]);
      }
    }
  }
  const bool add = c.add;
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    float* out = c.data + r * c.stride;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors - 1; ++v) put(out + v * kWidth, sum[r][v], add, All{});
    put(out + (kVectors - 1) * kWidth, sum[r][kVectors - 1], add, lanes);
  }
}

/// As multiply_block for any number of rows.
template <int kVectors, class Lanes>
void multiply_rows(std::int64_t rows, std::int64_t depth, Left a, const float* panel, Result c,
                   Lanes lanes) {
  const auto blocks_of = [&]<int kRows>() {
    for (; rows >= kRows; rows -= kRows) {
      multiply_block<kRows, kVectors>(depth, a, panel, c, lanes);
      a.data += kRows == kBlockRows ? a.block_stride : kRows * a.row_stride;
      c.data += kRows * c.stride;
    }
  };
  blocks_of.template operator()<kBlockRows>();
  blocks_of.template operator()<2>();
  blocks_of.template operator()<1>();
}

template <int kVectors = kBlockVectors>
void multiply_panel(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Left& a,
                    const float* panel, const Result& c) {
  if constexpr (kVectors > 1) {
    if (cols <= (kVectors - 1) * kWidth) {
      multiply_panel<kVectors - 1>(rows, cols, depth, a, panel, c);
      return;
    }
  }
  const int rest = static_cast<int>(cols - (kVectors - 1) * kWidth);
  if (rest == kWidth) {
    multiply_rows<kVectors>(rows, depth, a, panel, c, All{});
  } else {
    multiply_rows<kVectors>(rows, depth, a, panel, c, First{rest});
  }
}

/// panel[p][j] = b[p][j], zero from column `cols` on.
void lay_out_rows(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t cols,
                  float* panel) {
  for (std::int64_t p = 0; p < depth; ++p, b += stride, panel += kPanelCols) {
    if (cols == kPanelCols) {
#pragma GCC unroll 4
      for (int j = 0; j < kPanelCols; j += kWidth) store(panel + j, load(b + j, All{}), All{});
    } else {
      std::copy_n(b, cols, panel);
      std::fill(panel + cols, panel + kPanelCols, 0.0f);
    }
  }
}

typedef float Four __attribute__((vector_size(16)));

/// These lanes of a, 0 to 3, and of b, 4 to 7.
template <int... kLanes>
SHARDWRIGHT_INLINE Four pick(Four a, Four b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kLanes...);
#else
  typedef std::int32_t Order __attribute__((vector_size(16)));
  return __builtin_shuffle(a, b, Order{kLanes...});
#endif
}

/// panel[p][j] = b[j][p], zero from column `cols` on: 4 x 4 elements at a time.
void lay_out_columns(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t cols,
                     float* panel) {
  std::int64_t j = 0;
  for (; j + 4 <= cols; j += 4) {
    const float* from = b + j * stride;
    float* to = panel + j;
    std::int64_t p = 0;
    for (; p + 4 <= depth; p += 4) {
      Four in[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) std::memcpy(&in[i], from + i * stride + p, sizeof in[i]);
      const Four low01 = pick<0, 4, 1, 5>(in[0], in[1]);
      const Four high01 = pick<2, 6, 3, 7>(in[0], in[1]);
      const Four low23 = pick<0, 4, 1, 5>(in[2], in[3]);
      const Four high23 = pick<2, 6, 3, 7>(in[2], in[3]);
      const Four out[4] = {pick<0, 1, 4, 5>(low01, low23), pick<2, 3, 6, 7>(low01, low23),
                           pick<0, 1, 4, 5>(high01, high23), pick<2, 3, 6, 7>(high01, high23)};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) std::memcpy(to + (p + i) * kPanelCols, &out[i], sizeof out[i]);
    }
    for (; p < depth; ++p) {
      for (int i = 0; i < 4; ++i) to[p * kPanelCols + i] = from[i * stride + p];
    }
  }
  for (; j < kPanelCols; ++j) {
    for (std::int64_t p = 0; p < depth; ++p) {
      panel[p * kPanelCols + j] = j < cols ? b[j * stride + p] : 0.0f;
    }
  }
}

/// Rows of the left operand that stand in columns, kBlockRows at a time: out[block][p][r] = a[p][6
/// block + r].
void lay_out_left(const float* a, std::int64_t stride, std::int64_t depth, std::int64_t rows,
                  float* out) {
  for (std::int64_t p = 0; p < depth; ++p, a += stride, out += kBlockRows) {
    float* to = out;
    std::int64_t i = 0;
    for (; i + kBlockRows <= rows; i += kBlockRows, to += kBlockRows * kSliceDepth) {
      __builtin_prefetch(a + 8 * stride + i);
      std::memcpy(to, a + i, kBlockRows * sizeof(float));
    }
    std::copy_n(a + i, rows - i, to);
  }
}

}  // namespace

void gemm(Layout layout, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
          std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
          std::int64_t c_stride, bool add) {
  alignas(64) float panel[kSliceDepth * kPanelCols];
  alignas(64) float left[kSliceDepth * kLaidOutRows];
  const bool in_columns = layout == Layout::kTN;
  for (; in_columns && m > kLaidOutRows; m -= kLaidOutRows) {
    gemm(layout, kLaidOutRows, n, k, a, a_stride, b, b_stride, c, c_stride, add);
    a += kLaidOutRows;
    c += kLaidOutRows * c_stride;
  }
  for (std::int64_t p = 0; p == 0 || p < k; p += kSliceDepth) {
    const std::int64_t depth = std::min(kSliceDepth, k - p);
    if (in_columns) lay_out_left(a + p * a_stride, a_stride, depth, m, left);
    for (std::int64_t j = 0; j < n; j += kPanelCols) {
      const std::int64_t cols = std::min<std::int64_t>(kPanelCols, n - j);
      if (layout == Layout::kNT) {
        lay_out_columns(b + j * b_stride + p, b_stride, depth, cols, panel);
      } else {
        lay_out_rows(b + p * b_stride + j, b_stride, depth, cols, panel);
      }
      const Left rows = in_columns ? Left{left, 1, kBlockRows, kBlockRows * kSliceDepth}
                                   : Left{a + p, a_stride, 1, kBlockRows * a_stride};
      multiply_panel(m, cols, depth, rows, panel, Result{c + j, c_stride, add || p > 0});
    }
  }
}

void add_gemm(Kernels& kernels) {
  kernels.gemm = &gemm;
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
