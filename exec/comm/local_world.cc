// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_world.h"

#include <fmt/core.h>

#include <thread>
#include <utility>

#include "exec/comm/local_communicator.h"
#include "exec/comm/local_group.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

LocalWorld::LocalWorld(int ranks, int shard_ranks) : ranks_(ranks), shard_ranks_(shard_ranks) {
  if (ranks < 1) throw Error(fmt::format("the number of ranks is {}, expected 1 or more", ranks));
  if (shard_ranks < 1 || ranks % shard_ranks != 0) {
    throw Error(fmt::format("the shard group has {} ranks, expected a divisor of the {} ranks",
                            shard_ranks, ranks));
  }
  const int shard_groups = ranks / shard_ranks;
  groups_.push_back(std::make_unique<LocalGroup>(*this, ranks));
  for (int i = 0; i < shard_groups; ++i) {
    groups_.push_back(std::make_unique<LocalGroup>(*this, shard_ranks));
  }
  for (int i = 0; i < shard_ranks; ++i) {
    groups_.push_back(std::make_unique<LocalGroup>(*this, shard_groups));
  }
}

LocalWorld::~LocalWorld() = default;

RankGroups LocalWorld::groups(int rank, Device& device) {
  const int shard_groups = ranks_ / shard_ranks_;
  const int group = rank / shard_ranks_;
  const int place = rank % shard_ranks_;
  const auto make = [&](int index, int rank_in_group) {
    return std::make_unique<LocalCommunicator>(*groups_[static_cast<std::size_t>(index)],
                                               rank_in_group, rank, device);
  };
  RankGroups result;
  result.world = make(0, rank);
  result.shard = make(1 + group, place);
  result.replicate = make(1 + shard_groups + place, group);
  return result;
}

void LocalWorld::abort(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (failed_rank_ < 0) failed_rank_ = rank;
  changed_.notify_all();
}

void LocalWorld::keep_error(int rank, std::exception_ptr error) noexcept {
  abort(rank);
  const std::lock_guard lock(mutex_);
  if (rank == failed_rank_ && !error_) error_ = std::move(error);
}

void LocalWorld::run(const std::function<void(int rank)>& body) {
  const auto run_one = [this, &body](int rank) {
    try {
      body(rank);
    } catch (...) {
      keep_error(rank, std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    try {
      threads.emplace_back(run_one, rank);
    } catch (...) {  // no memory or process for it; those that run must not wait for it
      keep_error(rank, std::current_exception());
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace shardwright::exec
