// SPDX-License-Identifier: Apache-2.0
// Time of one GEMM on a processor, cut as the host device cuts it
// (kernels/host/matmul.cc).
//
// C[m,n] is cut into tiles of 128 x 192, or of 64 x 96 where those would be fewer than 16; each
// tile is one sequential product and cores take tiles one after another:
//
//     tc = 2 m n (k + k0) / (cores rate e (tile area / 32768)^s) * waves / tiles per core
//     t  = t0 + max(tc (1 + throttle tc/(tc + throttle_s)), operand and result bytes / memory)
//
// Unlike on a GPU edges cost what they hold: a register block is 8 x 48, so tiles are not padded.
// k0 stands for reading and writing the result, s for packing operands once a tile, w for cores
// that wait for the last tile. Left out: the layout of the operands, which moves single products by
// up to a tenth (weight gradients are the slowest).
#pragma once

#include <cstdint>

#include "profiles/gpu_params.h"

namespace shardwright::sim {

/// Seconds of `batch` independent m x n x k products on `cores` of the processor; gpu.peak_flops is
/// that of all its cores. None of the sizes is 0.
double host_gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                        std::int64_t m, std::int64_t n, std::int64_t k, int cores,
                        std::int64_t batch);

}  // namespace shardwright::sim
