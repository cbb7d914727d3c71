// SPDX-License-Identifier: Apache-2.0
// Matrices in fp8 on CUDA (kernels/host/fp8.h), the same codes and scales to the bit.
//
// A matrix and its transpose are made in one pass over tiles of 64 x 64, which blocks read once and
// turn in shared memory. Before that, the largest magnitudes are looked for where a scale is of
// more than a tile: in the bits of floats, as integers, so the order of atomics does not matter.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// Of which rows and columns are multiples: what a thread codes at a time.
inline constexpr std::int64_t kFp8Multiple = 16;

/// `rows` is `from`, `columns` its transpose, both scaled and rounded alike; one without codes is
/// not made. Codes are aligned to 16 bytes and scales to 4; rows and columns are multiples of 16,
/// with blocks of 32.
void quantize(cudaStream_t stream, host::Matrix<const BFloat16> from, const Fp8Matrix& rows,
              const Fp8Matrix& columns);

}  // namespace shardwright::kernels::cuda
