// SPDX-License-Identifier: Apache-2.0
// Time of one GEMM on a processor, cut as the host device's kernel cuts it
// (sim/core/product_layout.h, kernels/host/simd/gemm.cc).
//
// Cores take tiles one after another. In a tile, blocks of rows are multiplied by panels of 64
// columns: an element of the left operand is read once a panel and multiplied by all its columns,
// whole registers of 16. A left operand that stands in columns (gradients of weights) is laid out
// once a tile:
//
//     cols = ceil16(n) + k0 (panels + s tiles across, where it stands in columns)
//     tc   = 2 m k cols / (cores rate e) waves / tiles per core
//     t    = t0 + max(tc (1 + throttle tc/(tc + throttle_s)), operand and result bytes / memory)
//
// So k0 is what reading the left operand for a panel takes, in columns, and s what laying it out
// takes, over that; w is for cores that wait for the last tile. Left out: laying out panels and
// touching the result, felt where there are few rows or little depth; operands beyond the caches,
// which cost gradients of large weights up to a seventh; bf16 operands, widened a tile at a time.
#pragma once

#include <cstdint>

#include "profiles/gpu_params.h"
#include "sim/core/product_layout.h"

namespace shardwright::sim {

/// Seconds of `batch` independent m x n x k products on `cores` of the processor; gpu.peak_flops is
/// that of all its cores. None of the sizes is 0.
double host_gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                        ProductLayout layout, std::int64_t m, std::int64_t n, std::int64_t k,
                        int cores, std::int64_t batch);

}  // namespace shardwright::sim
