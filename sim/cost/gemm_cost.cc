// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/gemm_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sim/core/units.h"

namespace shardwright::sim {

namespace {

/// Tiles by log2 of their sides, largest area first: the first ones usually win, which lets the
/// bounds below discard the rest.
struct Tile {
  int log_m;
  int log_n;
};
constexpr std::array<Tile, 8> kTiles{
    {{8, 7}, {7, 8}, {7, 7}, {8, 6}, {6, 8}, {7, 6}, {6, 7}, {6, 6}}};
constexpr std::array<double, 6> kSplits{2, 3, 4, 6, 8, 16};
constexpr int kSmallestSide = 6;
constexpr int kLargestArea = 15;  // log2(256 * 128)

/// ceil of a number in [0, 2^62] without a library call.
double ceiling(double x) {
  const double whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole < x ? whole + 1 : whole;
}

double waves(double blocks_per_sm, double hardness) {
  if (blocks_per_sm <= 1) return 1;
  return blocks_per_sm + hardness * (ceiling(blocks_per_sm) - blocks_per_sm);
}

}  // namespace

double gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                   std::int64_t m, std::int64_t n, std::int64_t k, int sms_available,
                   std::int64_t batch, double operand_bytes, ProductLayout layout) {
  if (m <= 0 || n <= 0 || k <= 0 || batch <= 0) return 0;
  if (gpu.processor) return host_gemm_time_s(params, gpu, layout, m, n, k, sms_available, batch);
  const double dm = static_cast<double>(m);
  const double dn = static_cast<double>(n);
  const double dk = static_cast<double>(k);
  const double count = static_cast<double>(batch);
  const double sms = std::clamp(sms_available, 1, gpu.sm_count);
  const double hbm = gpu.hbm_bytes_per_s * gpu.hbm_efficiency;

  // Tile counts along m and n for sides 64, 128, 256.
  std::array<double, 3> tiles_m;
  std::array<double, 3> tiles_n;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t side = std::int64_t{1} << (kSmallestSide + i);
    tiles_m[static_cast<std::size_t>(i)] = static_cast<double>(ceil_div(m, side));
    tiles_n[static_cast<std::size_t>(i)] = static_cast<double>(ceil_div(n, side));
  }
  // Seconds per step of k of one tile, by how often its area is halved from 256 x 128.
  const double penalty = std::exp2(params.s);
  std::array<double, 4> step_s;
  step_s[0] = 2.0 * 32768 * gpu.sm_count / (gpu.peak_flops * params.e);
  for (std::size_t i = 1; i < step_s.size(); ++i) step_s[i] = step_s[i - 1] * 0.5 * penalty;

  const double reduction_s = 4 * dm * dn * count / hbm;  // per split: fp32 partial results
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double step = step_s[static_cast<std::size_t>(kLargestArea - tile.log_m - tile.log_n)];
    const double u = tiles_m[static_cast<std::size_t>(tile.log_m - kSmallestSide)] *
                     tiles_n[static_cast<std::size_t>(tile.log_n - kSmallestSide)] * count / sms;
    best = std::min(best, waves(u, params.w) * step * (dk + params.k0));
    // Waves are at least u * split, so no split can beat this; it grows with the split.
    const auto bound = [&](double split) {
      return u * step * (dk + split * params.k0) + params.split_k_s + split * reduction_s;
    };
    for (const double split : kSplits) {
      if (bound(split) >= best) break;
      best = std::min(best, waves(u * split, params.w) * step * (dk / split + params.k0) +
                                params.split_k_s + split * reduction_s);
    }
  }
  best *= 1 + params.throttle * best / (best + params.throttle_s);
  const double traffic_s = (operand_bytes * (dm * dk + dk * dn) + 2 * (dm * dn)) * count / hbm;
  return params.t0_s + std::max(best, traffic_s);
}

TypedGemm typed_gemm(const profiles::GemmParams& params, const profiles::GpuRates& rates,
                     double peak_flops, double share) {
  TypedGemm typed{params, rates};
  typed.params.e *= share;
  typed.params.k0 *= share * peak_flops / rates.peak_flops;
  typed.rates.peak_flops = peak_flops;
  return typed;
}

profiles::GemmParams sustained(profiles::GemmParams params) {
  params.e *= params.sustained_factor;
  return params;
}

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
  // As on a GPU: below one tile a core the rest idles.
  const double tiles = static_cast<double>(tiling.down * tiling.across) * count / available;
  const double waves = tiles <= 1 ? 1 : tiles + params.w * (std::ceil(tiles) - tiles);
  double compute_s = 2 * dm * dk * cols * count / (available * rate) * waves / tiles;
  compute_s *= 1 + params.throttle * compute_s / (compute_s + params.throttle_s);
  const double traffic_s = kElementBytes * (dm * dk + dk * dn + dm * dn) * count /
                           (gpu.hbm_bytes_per_s * gpu.hbm_efficiency);
  return params.t0_s + std::max(compute_s, traffic_s);
}

}  // namespace shardwright::sim
