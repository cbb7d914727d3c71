// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_world.h"

#include <thread>
#include <utility>

#include "exec/comm/local_communicator.h"
#include "exec/comm/local_group.h"
#include "exec/comm/rank_groups.h"

namespace shardwright::exec {

LocalWorld::LocalWorld(const RankMesh& mesh)
    : mesh_(mesh), devices_(static_cast<std::size_t>(mesh.ranks)) {
  for (const CommGroup kind : kRankGroups) {
    for (std::int64_t rank = 0; rank < mesh.ranks; ++rank) {
      const std::vector<std::int64_t> members = mesh.members(kind, rank);
      if (members.front() != rank) continue;
      groups_[{kind, rank}] = std::make_unique<LocalGroup>(*this, static_cast<int>(members.size()));
    }
  }
}

LocalWorld::LocalWorld(int ranks, int shard_ranks)
    : LocalWorld(data_parallel_mesh(ranks, shard_ranks)) {}

LocalWorld::~LocalWorld() = default;

RankGroups LocalWorld::groups(int rank, Device& device, const OnWorld& on_world) {
  {
    const std::lock_guard lock(mutex_);
    devices_[static_cast<std::size_t>(rank)] = &device;
  }
  return make_groups(
      mesh_, rank, on_world,
      [&](CommGroup kind, const std::vector<std::int64_t>& members, int rank_in_group) {
        return std::make_unique<LocalCommunicator>(*groups_.at({kind, members.front()}),
                                                   rank_in_group, rank, device);
      });
}

void LocalWorld::abort(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  abort_locked(rank);
}

void LocalWorld::abort_locked(int rank) noexcept {
  aborted_ = true;
  if (failed_rank_ < 0) failed_rank_ = rank;
  changed_.notify_all();
}

bool LocalWorld::sees_failure() noexcept {
  for (int rank = 0; rank < ranks() && !aborted_; ++rank) {
    const Device* device = devices_[static_cast<std::size_t>(rank)];
    if (device != nullptr && device->has_failed()) abort_locked(rank);
  }
  return aborted_;
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
  threads.reserve(static_cast<std::size_t>(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
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
