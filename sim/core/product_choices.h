// SPDX-License-Identifier: Apache-2.0
// Which of a library's algorithms serves each GEMM on a kind of GPU, as it was timed.
//
// `measure` writes such choices into the profile of a cluster, a run keeps its own beside its
// checkpoints; both are this one form. A choice is a place in the library's list, so it means
// something only to the same release of the library on the same kind of GPU.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.h"

namespace shardwright {

class JsonReader;

/// By which of the algorithms that the library offers a product is computed.
struct ProductChoice {
  std::string product;     // all that the library was asked for, in words
  std::int32_t place = 0;  // in the library's order
  double seconds = 0;      // of one, and of the first; 0: not timed
  double first_s = 0;
};

/// Algorithms of a product that are looked at, at most.
inline constexpr int kMostProductCandidates = 8;

struct ProductChoices {
  std::string release;  // of the library: "13.1.0"
  std::string gpu;
  std::vector<ProductChoice> choices;

  bool same_place(const ProductChoices& other) const {
    return release == other.release && gpu == other.gpu;
  }
  /// Adds what `other`, of the same library and GPU, names and this does not.
  void add(const ProductChoices& other);
};

/// An object with a schema of its own.
std::string to_json(const ProductChoices& choices);
/// Throws Error naming the reader's file.
ProductChoices read_product_choices(const JsonReader& root);
/// The same of a file's text.
ProductChoices product_choices_from(std::string_view text, const std::string& file);

// How the operands of a row-major GEMM C[m,n] = A B lie, and how the host device's kernel cuts it:
// read by that kernel (kernels/host/matmul.cc, kernels/host/simd/gemm.cc) and by the model of its
// time (sim/cost/gemm_cost.h).

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
