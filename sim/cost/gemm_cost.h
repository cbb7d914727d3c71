// SPDX-License-Identifier: Apache-2.0
// Time of one GEMM on a GPU: tiles, waves and a split of k.
//
// C[m,n] = A[m,k] B[k,n] is cut into tiles; each thread block computes one tile, one block runs on
// an SM at a time, so the product takes as many waves as there are blocks per SM:
//
//     blocks = ceil(m/tm) ceil(n/tn) split        u = blocks / SMs available
//     W      = 1 if u <= 1, else (1-w) u + w ceil(u)
//     tc     = min over tiles and splits of W 2 tm tn (k/split + k0) / (peak/SMs e (tm tn/32768)^s)
//              + [split > 1: split_k_s + 4 split m n / HBM]
//     t      = t0 + max(tc (1 + throttle tc/(tc + throttle_s)), operand and result bytes / HBM)
//
// The tile form is that of hardware practice (cuBLAS picks among a few tiles by a similar model);
// the throttle term says that clocks fall once a kernel is long enough to draw full power. Left
// out: L2 reuse, epilogues, transposes (they differ by a few percent), structured sparsity.
// A processor cuts GEMMs otherwise, as said below.
// Fitted by profiles/research/kernels.py; per-shape measurements from a trace should win over the
// formula.
#pragma once

#include <cstdint>

#include "profiles/gpu_params.h"
#include "sim/core/product_choices.h"

namespace shardwright::sim {

/// Seconds for `batch` independent m x n x k GEMMs in bf16, or in another type with the
/// parameters of typed_gemm and `operand_bytes`; the result has 2 bytes. `sms_available` below the
/// GPU's count models a collective that holds the rest: waves are counted anew. It is clamped to
/// [1, sm_count]; a product with an empty dimension takes no time. `layout` counts on processors.
/// Never falls when m, n, k or batch grow, never rises with more SMs or bandwidth.
double gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                   std::int64_t m, std::int64_t n, std::int64_t k, int sms_available,
                   std::int64_t batch = 1, double operand_bytes = 2,
                   ProductLayout layout = ProductLayout::kNT);

/// What gemm_time_s takes for products in a type of the peak `peak_flops`, of which the main loop
/// reaches `share` times what it reaches of the bf16 peak. Prologues take as long as in bf16, so
/// they count as more steps.
struct TypedGemm {
  profiles::GemmParams params;
  profiles::GpuRates rates;
};
TypedGemm typed_gemm(const profiles::GemmParams& params, const profiles::GpuRates& rates,
                     double peak_flops, double share);

/// The parameters under training load: e times sustained_factor. Tables of short benchmarks run at
/// burst clocks that a long run does not hold.
profiles::GemmParams sustained(profiles::GemmParams params);

// Time of one GEMM on a processor, cut as the host device's kernel cuts it
// (sim/core/product_choices.h, kernels/host/simd/gemm.cc).
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

/// Seconds of `batch` independent m x n x k products on `cores` of the processor; gpu.peak_flops is
/// that of all its cores. None of the sizes is 0.
double host_gemm_time_s(const profiles::GemmParams& params, const profiles::GpuRates& gpu,
                        ProductLayout layout, std::int64_t m, std::int64_t n, std::int64_t k,
                        int cores, std::int64_t batch);

}  // namespace shardwright::sim
