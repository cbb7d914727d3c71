// SPDX-License-Identifier: Apache-2.0
#include "exec/communicator.h"

#include <fmt/core.h>

#include <thread>

#include "sim/core/base/error.h"
#include "sim/core/plan.h"

namespace shardwright::exec {

std::vector<std::string> exchange_texts(Communicator& group, std::string mine) {
  const std::vector<std::size_t> sizes = exchange_all(group, mine.size());
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(sizes.size());
  if (most == 0) return texts;
  mine.resize(most);
  std::string all(most * sizes.size(), '\0');
  group.exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    texts[rank] = all.substr(rank * most, sizes[rank]);
  }
  return texts;
}

void run_on_threads(int ranks, const std::function<void(int rank)>& body,
                    const std::function<void(int rank, bool started)>& failed) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          failed(rank, true);
        }
      });
    } catch (...) {  // no memory or process for it
      failed(rank, false);
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
}

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
