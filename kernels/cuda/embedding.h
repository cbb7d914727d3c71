// SPDX-License-Identifier: Apache-2.0
// Token embedding on CUDA: rows of a table out, and sums of gradient rows back, without atomics on
// floats. (kernels/host/embedding.h is the same on the processor.)
#pragma once

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// out[i] = scale * table[tokens[i]], or that added to what is there, rounded once. A token outside
/// the vocabulary gives a row of NaNs. A table may be the rows from `first_row` on of a larger one:
/// tokens of others then give rows of -0, or add nothing.
template <class T>
void embedding_forward(cudaStream_t stream, host::Matrix<const T> table, const std::int32_t* tokens,
                       host::Matrix<T> out, double scale = 1,
                       host::Store mode = host::Store::kOverwrite,
                       std::int64_t first_row = kWholeTable);

/// Row v of d_table is the fp32 sum of the rows of d_out with token v in ascending order of place,
/// times `scale`, rounded once, or that sum added to what is there; rows of absent tokens are zero,
/// or stay. Tokens outside the table, which may begin at `first_row` of a larger one, do not count.
template <class T, class G>
void embedding_backward(cudaStream_t stream, const std::int32_t* tokens,
                        host::Matrix<const T> d_out, host::Matrix<G> d_table, host::Store mode,
                        std::int32_t* workspace, double scale = 1,
                        std::int64_t first_row = kWholeTable);

}  // namespace shardwright::kernels::cuda
