// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/host_gemm_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/core/units.h"

namespace shardwright::sim {
namespace {

// As in kernels/host/matmul.cc.
constexpr std::int64_t kTileRows = 128, kTileCols = 192;
constexpr std::int64_t kSmallTileRows = 64, kSmallTileCols = 96;
constexpr std::int64_t kEnoughTiles = 16;
constexpr double kElementBytes = 4;

}  // namespace

double host_gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                        std::int64_t m, std::int64_t n, std::int64_t k, int cores,
                        std::int64_t batch) {
  std::int64_t rows = kTileRows, cols = kTileCols;
  if (ceil_div(m, rows) * ceil_div(n, cols) < kEnoughTiles) {
    rows = kSmallTileRows;
    cols = kSmallTileCols;
  }
  const double dm = static_cast<double>(m), dn = static_cast<double>(n);
  const double dk = static_cast<double>(k), count = static_cast<double>(batch);
  const double available = std::clamp(cores, 1, gpu.sm_count);
  // A tile that sticks out is only as large as what it holds.
  const double area = static_cast<double>(std::min(rows, m) * std::min(cols, n));
  const double rate = gpu.peak_flops / gpu.sm_count * params.e * std::pow(area / 32768.0, params.s);
  const double per_core = dm * dn * count / area / available;  // tiles, by what they hold
  const double tiles =
      static_cast<double>(ceil_div(m, rows) * ceil_div(n, cols)) * count / available;
  // As in gemm_cost.h: below one tile a core the rest idles.
  const double waves = tiles <= 1 ? 1 : tiles + params.w * (std::ceil(tiles) - tiles);
  double compute_s = per_core * waves / tiles * 2 * area * (dk + params.k0) / rate;
  compute_s *= 1 + params.throttle * compute_s / (compute_s + params.throttle_s);
  const double traffic_s = kElementBytes * (dm * dk + dk * dn + dm * dn) * count /
                           (gpu.hbm_bytes_per_s * gpu.hbm_efficiency);
  return params.t0_s + std::max(compute_s, traffic_s);
}

}  // namespace shardwright::sim
