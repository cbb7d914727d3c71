// SPDX-License-Identifier: Apache-2.0
// Matrices in fp8, and products of them as tensor cores make them: codes are multiplied, sums are
// fp32, and the finished sum is multiplied by what the operands were scaled by.
//
// Codes and scales are those of kernels/cuda/fp8.h to the bit; sums are added in another order.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

/// to = `from`, or its transpose where `transposed`, with the scales of to.scaling along its rows.
/// Blocks want to.cols to be a multiple of kFp8Block.
template <class T>
void quantize(Parallel& parallel, Matrix<const T> from, bool transposed, const Fp8Matrix& to);

/// out[m, n] = a[m, k] b[n, k]^T, both scaled alike and not turned; rounded once. The order of sums
/// is that of rows and columns of the operands alone, as in matmul.h.
template <class C>
void fp8_matmul(Parallel& parallel, const Fp8Matrix& a, const Fp8Matrix& b, Matrix<C> out,
                Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
