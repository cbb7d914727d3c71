// SPDX-License-Identifier: Apache-2.0
// Products of row-major matrices, cut into tiles over the threads.
//
// An element's bits depend on its row and its column of the operands alone (simd/gemm.cc), so the
// result is the same for any number of threads and any tiles. bf16 operands are widened tile by
// tile: arithmetic and sums are fp32 and the result is rounded once.
//
// In fp8 products are those of tensor cores: codes are multiplied, sums are fp32, and the finished
// sum is multiplied by what the operands were scaled by. Codes and scales are those of
// kernels/cuda/fp8.h to the bit; sums are added in another order.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "kernels/host/parallel.h"
#include "kernels/host/simd/kernels.h"

namespace shardwright::kernels::host {

/// out[m, n] = a b, with the operands laid out as Layout says: kNT: a[m,k] b[n,k]; kNN: a[m,k]
/// b[k,n]; kTN: a[k,m] b[k,n]. Element types are float or BFloat16 in any mix. `out` overlaps
/// neither operand.
template <class A, class B, class C>
void matmul(Parallel& parallel, Layout layout, Matrix<const A> a, Matrix<const B> b, Matrix<C> out,
            Store mode = Store::kOverwrite);

/// to = `from`, or its transpose where `transposed`, with the scales of to.scaling along its rows.
/// Blocks want to.cols to be a multiple of kFp8Block.
template <class T>
void quantize(Parallel& parallel, Matrix<const T> from, bool transposed, const Fp8Matrix& to);

/// out[m, n] = a[m, k] b[n, k]^T, both scaled alike and not turned; rounded once. The order of sums
/// is that of rows and columns of the operands alone.
template <class C>
void fp8_matmul(Parallel& parallel, const Fp8Matrix& a, const Fp8Matrix& b, Matrix<C> out,
                Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
