// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/host_gemm_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/core/units.h"

namespace shardwright::sim {
namespace {

constexpr double kElementBytes = 4;

}  // namespace

double host_gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                        ProductLayout layout, std::int64_t m, std::int64_t n, std::int64_t k,
                        int cores, std::int64_t batch) {
  const int available = std::clamp(cores, 1, gpu.sm_count);
  const HostTiling tiling =
      host_tiling(layout, false, m, n, gpu.pool_threads > 0 ? gpu.pool_threads : gpu.sm_count);
  const double dm = static_cast<double>(m), dn = static_cast<double>(n);
  const double dk = static_cast<double>(k), count = static_cast<double>(batch);
  const auto panels = static_cast<double>(ceil_div(n, kHostPanelCols));
  const double laid_out =
      layout == ProductLayout::kTN ? params.s * static_cast<double>(tiling.across) : 0;
  const double cols =
      static_cast<double>(round_up(n, kHostRegisterCols)) + params.k0 * (panels + laid_out);
  const double rate = gpu.peak_flops / gpu.sm_count * params.e;
  // As in gemm_cost.h: below one tile a core the rest idles.
  const double tiles = static_cast<double>(tiling.down * tiling.across) * count / available;
  const double waves = tiles <= 1 ? 1 : tiles + params.w * (std::ceil(tiles) - tiles);
  double compute_s = 2 * dm * dk * cols * count / (available * rate) * waves / tiles;
  compute_s *= 1 + params.throttle * compute_s / (compute_s + params.throttle_s);
  const double traffic_s = kElementBytes * (dm * dk + dk * dn + dm * dn) * count /
                           (gpu.hbm_bytes_per_s * gpu.hbm_efficiency);
  return params.t0_s + std::max(compute_s, traffic_s);
}

}  // namespace shardwright::sim
