// SPDX-License-Identifier: Apache-2.0
// Products of row-major matrices, cut into tiles over the threads.
//
// An element's bits depend on its row and its column of the operands alone (simd/gemm.cc), so the
// result is the same for any number of threads and any tiles. bf16 operands are widened tile by
// tile: arithmetic and sums are fp32 and the result is rounded once.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"
#include "kernels/host/simd/kernels.h"

namespace shardwright::kernels::host {

/// out[m, n] = a b, with the operands laid out as Layout says: kNT: a[m,k] b[n,k]; kNN: a[m,k]
/// b[k,n]; kTN: a[k,m] b[k,n]. Element types are float or BFloat16 in any mix. `out` overlaps
/// neither operand.
template <class A, class B, class C>
void matmul(Parallel& parallel, Layout layout, Matrix<const A> a, Matrix<const B> b, Matrix<C> out,
            Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
