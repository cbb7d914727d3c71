// SPDX-License-Identifier: Apache-2.0
// Initial weights: normal numbers by global index, drawn by as many threads as there are cores.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/random.h"

namespace shardwright::exec {

/// out[j] = deviation * random.normal(first + j), rounded to fp32, whatever the number of threads:
/// 0 for one a core, where there is enough to draw.
void draw_weights(const kernels::RandomStream& random, std::uint64_t first, double deviation,
                  std::span<float> out, unsigned threads = 0);

}  // namespace shardwright::exec
