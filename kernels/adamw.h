// SPDX-License-Identifier: Apache-2.0
// The numbers of one AdamW step, shared by the oracle, the host and device kernels.
//
// Decoupled weight decay (Loshchilov and Hutter, 2019) in PyTorch's order of operations:
//   g = grad_scale * gradient;  p *= 1 - lr * weight_decay
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
#pragma once

#include <cstdint>

namespace shardwright::kernels {

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;    // t, from 1
  double grad_scale = 1.0;  // clipping and the division by the number of micro-batches
  std::uint64_t seed = 0;   // of stochastic rounding
};

/// Which parameters of the model the elements of an array are: the random bits of a parameter
/// depend on nothing else. An array may be, or begin and end inside, the rows of some columns of a
/// matrix.
struct ElementIndices {
  std::uint64_t first = 0;      // of element 0; with rows of the element that begins its row
  std::int64_t row_begin = 0;   // place of element 0 in its row
  std::int64_t row_length = 0;  // of the array; 0: its elements follow one another
  std::int64_t row_stride = 0;  // from row to row in the model

  constexpr std::uint64_t of(std::int64_t i) const {
    if (row_length == 0) return first + static_cast<std::uint64_t>(i);
    const std::int64_t at = row_begin + i;
    return first + static_cast<std::uint64_t>(at / row_length * row_stride + at % row_length);
  }
  /// How many of `count` elements from `i` on follow one another in the model.
  constexpr std::int64_t run(std::int64_t i, std::int64_t count) const {
    if (row_length == 0) return count;
    const std::int64_t left = row_length - (row_begin + i) % row_length;
    return left < count ? left : count;
  }
};

/// The factor that brings a gradient of this norm down to `max_norm`, as torch.nn.utils
/// .clip_grad_norm_ computes it: min(1, max_norm / (norm + 1e-6)). max_norm 0 means no clipping.
inline double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

}  // namespace shardwright::kernels
