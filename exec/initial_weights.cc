// SPDX-License-Identifier: Apache-2.0
#include "exec/initial_weights.h"

#include <algorithm>

#include "sim/core/base/worker_pool.h"

namespace shardwright::exec {
namespace {

constexpr std::size_t kAtATime = std::size_t{1} << 16;  // numbers of one thread

}  // namespace

void draw_weights(const kernels::RandomStream& random, std::uint64_t first, double deviation,
                  std::span<float> out, unsigned threads) {
  for_each_index((out.size() + kAtATime - 1) / kAtATime, threads, [&](std::size_t piece) {
    const std::size_t at = piece * kAtATime;
    kernels::random_normal(random, first + at, 0.0, deviation,
                           out.subspan(at, std::min(kAtATime, out.size() - at)));
  });
}

}  // namespace shardwright::exec
