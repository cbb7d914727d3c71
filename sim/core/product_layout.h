// SPDX-License-Identifier: Apache-2.0
// How the operands of a row-major GEMM C[m,n] = A B lie, and how the host device's kernel cuts it:
// read by that kernel (kernels/host/matmul.cc, kernels/host/simd/gemm.cc) and by the model of its
// time (sim/cost/host_gemm_cost.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "sim/core/units.h"

namespace shardwright {

/// Which operand stands transposed: kNT: A[m,k], B[n,k] (forward); kNN: A[m,k], B[k,n] (gradient of
/// the input); kTN: A[k,m], B[k,n] (gradient of the weight).
enum class ProductLayout : std::uint8_t { kNT, kNN, kTN };
inline constexpr std::array kProductLayouts{ProductLayout::kNT, ProductLayout::kNN,
                                            ProductLayout::kTN};

struct HostTile {
  std::int64_t rows = 0, cols = 0;
};
/// `down` x `across` tiles, those at the lower and right edges smaller.
struct HostTiling {
  HostTile tile;
  std::int64_t down = 0, across = 0;
};

/// Columns of a register and of a panel, which is what one block of the result is wide, with
/// AVX-512.
inline constexpr std::int64_t kHostRegisterCols = 16, kHostPanelCols = 64;

/// The largest tile that leaves every one of several threads a few. What is laid out of the right
/// operand serves all rows of a tile, so tall ones are cheap; but a left operand that stands in
/// columns, or that is widened, is prepared for each tile anew.
inline HostTiling host_tiling(ProductLayout layout, bool widened, std::int64_t m, std::int64_t n,
                              int threads) {
  constexpr std::array<HostTile, 4> kTall{{{512, 64}, {256, 64}, {128, 64}, {64, 64}}};
  constexpr std::array<HostTile, 5> kWide{
      {{256, 256}, {128, 256}, {128, 128}, {64, 128}, {64, 64}}};
  const std::int64_t enough = threads > 1 ? 4 * threads : 1;
  const std::span<const HostTile> tiles = widened || layout == ProductLayout::kTN
                                              ? std::span<const HostTile>(kWide)
                                              : std::span<const HostTile>(kTall);
  HostTiling tiling;
  for (const HostTile& tile : tiles) {
    tiling = {tile, ceil_div(m, tile.rows), ceil_div(n, tile.cols)};
    if (tiling.down * tiling.across >= enough) break;
  }
  return tiling;
}

}  // namespace shardwright
