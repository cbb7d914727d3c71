// SPDX-License-Identifier: Apache-2.0
// Token embedding: rows of a table out, and sums of gradient rows back.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

/// out[i] = scale * table[tokens[i]], or that added to what is there, rounded once. Throws Error
/// when a token lies outside the vocabulary.
///
/// A table may be the rows from `first_row` on of a larger one: tokens of others then give rows of
/// -0, the neutral element of sums, or add nothing.
template <class T>
void embedding_forward(Parallel& parallel, Matrix<const T> table,
                       std::span<const std::int32_t> tokens, Matrix<T> out, double scale = 1,
                       Store mode = Store::kOverwrite, std::int64_t first_row = kWholeTable);

/// Overwrites d_table[vocab, C]: row v is the fp32 sum of d_out rows with token v in ascending
/// order of place, times `scale`, rounded once; rows of absent tokens are zero. With kAdd the sum
/// is added to the row: for a head that shares the table and wrote its gradient there. Tokens of
/// other rows than those from `first_row` on are left out.
template <class T, class G>
void embedding_backward(Parallel& parallel, std::span<const std::int32_t> tokens,
                        Matrix<const T> d_out, Matrix<G> d_table, Store mode,
                        std::span<std::int32_t> workspace, double scale = 1,
                        std::int64_t first_row = kWholeTable);

}  // namespace shardwright::kernels::host
