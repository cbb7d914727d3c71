// SPDX-License-Identifier: Apache-2.0
// Where a row starts; here and not in Rows, so that each instruction set has its own copy.
#pragma once

#include "kernels/arguments.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

[[gnu::always_inline]] inline std::int64_t row_offset(const Rows& rows, std::int64_t row) {
  if (rows.heads == 1) return row * rows.stride;
  return row / rows.heads * rows.stride + row % rows.heads * rows.cols;
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
