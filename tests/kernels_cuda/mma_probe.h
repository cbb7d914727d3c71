// SPDX-License-Identifier: Apache-2.0
// Kernels that spell out the fragments of kernels/cuda/mma.h, for its test.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// c[16, 8] += a[16, 16] b[16, 8], all row-major; A and B go through shared memory and ldmatrix, B
/// as it is (`transposed_b` false, then ldmatrix transposes) or as b[8, 16].
void mma_probe(cudaStream_t stream, const BFloat16* a, const BFloat16* b, bool transposed_b,
               float* c);

/// out[32, 4]: the registers of ldmatrix_x4 on four 8 x 8 matrices that lie one after the other.
void ldmatrix_probe(cudaStream_t stream, const BFloat16* matrices, bool transposed,
                    std::uint32_t* out);

}  // namespace shardwright::kernels::cuda
