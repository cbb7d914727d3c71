// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_world.h"

#include <fmt/core.h>

#include <chrono>
#include <cstring>

#include "exec/nccl/nccl_error.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

// Channels of the rendezvous: the world's, then one for each shard and replicate group.
constexpr std::uint32_t kWorldChannel = 0;
constexpr std::uint32_t kFirstShardChannel = 1u << 8;
constexpr std::uint32_t kFirstReplicateChannel = 1u << 28;

}  // namespace

NcclWorld::NcclWorld(Bootstrap& bootstrap, const NcclOptions& options)
    : bootstrap_(bootstrap), options_(options) {
  ncclUniqueId mine{};
  if (bootstrap.rank() == 0) check_nccl(ncclGetUniqueId(&mine), "ncclGetUniqueId");
  std::vector<ncclUniqueId> ids(static_cast<std::size_t>(bootstrap.ranks()));
  bootstrap.exchange({kWorldChannel, bootstrap.rank(), bootstrap.ranks()},
                     std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(ids)));
  groups_.push_back(
      std::make_shared<NcclGroup>(bootstrap.ranks(), bootstrap.rank(), ids.front(), options,
                                  [&bootstrap] { return bootstrap.failure().has_value(); }));
  watcher_ = std::thread([this] { watch(); });
}

NcclWorld::~NcclWorld() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

RankGroups NcclWorld::groups(int shard_ranks, Device& device, const NativeStreams& streams) {
  const int ranks = bootstrap_.ranks();
  if (shard_ranks < 1 || ranks % shard_ranks != 0) {
    throw Error(fmt::format("the shard group has {} ranks, expected a divisor of the {} ranks",
                            shard_ranks, ranks));
  }
  const int rank = bootstrap_.rank();
  const int shard = rank / shard_ranks;
  const int place = rank % shard_ranks;
  // A group of all ranks is the world: one set of buffers and connections serves both.
  const std::shared_ptr<NcclGroup> world = groups_.front();
  const auto part = [&](int size, int color, const char* name) {
    return size == ranks ? world : std::make_shared<NcclGroup>(*world, color, rank, name);
  };
  const std::shared_ptr<NcclGroup> shard_group = part(shard_ranks, shard, "shard");
  const std::shared_ptr<NcclGroup> replicate_group = part(ranks / shard_ranks, place, "replicate");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& group : {shard_group, replicate_group}) {
      if (group != world) groups_.push_back(group);
    }
  }
  // What failed before the watcher knew of these groups.
  if (bootstrap_.failure()) throw Aborted();
  const auto make = [&](const std::shared_ptr<NcclGroup>& group, const BootstrapGroup& seat) {
    return std::make_unique<NcclCommunicator>(group, bootstrap_, seat, device, streams);
  };
  RankGroups groups;
  groups.world = make(groups_.front(), {kWorldChannel, rank, ranks});
  groups.shard = make(shard_group,
                      {kFirstShardChannel + static_cast<std::uint32_t>(shard), place, shard_ranks});
  groups.replicate = make(
      replicate_group,
      {kFirstReplicateChannel + static_cast<std::uint32_t>(place), shard, ranks / shard_ranks});
  return groups;
}

std::string NcclWorld::version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "NCCL";
  return fmt::format("NCCL {}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

bool NcclWorld::look() {
  if (bootstrap_.failure()) return true;
  std::vector<std::shared_ptr<NcclGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  for (const std::shared_ptr<NcclGroup>& group : groups) {
    const auto failure = group->failure();
    if (!failure) continue;
    const auto begin = std::chrono::steady_clock::now();
    while (failure->remote && !bootstrap_.failure() &&
           std::chrono::steady_clock::now() - begin <
               std::chrono::duration<double>(options_.echo_s)) {
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.watch_s));
    }
    bootstrap_.fail(ExitCode::kFailed, failure->what);
    return true;
  }
  return false;
}

void NcclWorld::abort_all() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<NcclGroup>& group : groups_) group->abort();
}

void NcclWorld::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    const bool failed = look();
    if (failed) abort_all();
    lock.lock();
    if (failed) return;
    changed_.wait_for(lock, std::chrono::duration<double>(options_.watch_s),
                      [this] { return ends_; });
  }
}

}  // namespace shardwright::exec
