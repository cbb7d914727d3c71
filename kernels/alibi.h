// SPDX-License-Identifier: Apache-2.0
// Slopes of ALiBi (Press et al., Train Short, Test Long), in the order in which MPT gives them to
// heads: 2^(-8 k / n) for k = 1 to n, n the next power of two; where that is more than there are
// heads, first those of even k.
#pragma once

namespace shardwright::kernels {

/// k / n, from above 0 to 1: the slope of a head is 2 to the power of -8 times this.
constexpr float alibi_share(int head, int heads) {
  int power = 1;
  while (power < heads) power *= 2;
  const int half = power / 2;
  const int k = power == heads ? head + 1 : head < half ? 2 * head + 2 : 2 * (head - half) + 1;
  return static_cast<float>(k) / static_cast<float>(power);
}

}  // namespace shardwright::kernels
