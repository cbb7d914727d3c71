// SPDX-License-Identifier: Apache-2.0
// Which rows of a buffer an operation works on: plain matrices, or the heads inside packed tokens.
#pragma once

#include <cstdint>

namespace shardwright::kernels::host {

/// `tokens` times `heads` rows of `cols` numbers. The heads of a token lie side by side, tokens
/// `stride` elements apart: a plain [n, cols] matrix is {n, 1, cols, cols}, the query heads of a
/// packed [n, (H + 2 Hkv) D] buffer are {n, H, D, (H + 2 Hkv) D}.
struct Rows {
  std::int64_t tokens = 0;
  std::int64_t heads = 1;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  static Rows matrix(std::int64_t rows, std::int64_t cols) { return {rows, 1, cols, cols}; }
  std::int64_t count() const { return tokens * heads; }
};

}  // namespace shardwright::kernels::host
