// SPDX-License-Identifier: Apache-2.0
#include "exec/communicator.h"

#include <fmt/core.h>

#include "sim/core/base/error.h"
#include "sim/core/plan.h"

namespace shardwright::exec {

RankMesh data_parallel_mesh(std::int64_t ranks, std::int64_t shard_ranks) {
  if (ranks < 1) throw Error(fmt::format("the number of ranks is {}, expected 1 or more", ranks));
  if (shard_ranks < 1 || ranks % shard_ranks != 0) {
    throw Error(fmt::format("the shard group has {} ranks, expected a divisor of the {} ranks",
                            shard_ranks, ranks));
  }
  Plan plan;
  plan.gpus = ranks;
  return RankMesh(plan, shard_ranks);
}

}  // namespace shardwright::exec
