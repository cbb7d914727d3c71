// SPDX-License-Identifier: Apache-2.0
// Oracle for sums of arrays as a binary tree over neighbours: bits are what it is about, so it is
// in the arithmetic of the kernels, one element at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/bf16.h"

namespace shardwright::kernels::reference {

/// Element `i` of inputs [begin, begin + count), a power of two: fp32 sums, of which all but the
/// root are rounded to T.
template <class T>
float fold_tree(const std::vector<std::vector<T>>& inputs, std::size_t begin, std::size_t count,
                std::size_t i, bool root = true) {
  if (count == 1) return to_float(inputs[begin][i]);
  const std::size_t half = count / 2;
  const float sum =
      fold_tree(inputs, begin, half, i, false) + fold_tree(inputs, begin + half, half, i, false);
  return root ? sum : to_float(from_float<T>(sum));
}

}  // namespace shardwright::kernels::reference
