// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_world.h"

#include <fmt/core.h>

#include <chrono>
#include <cstring>

#include "exec/comm/rank_groups.h"
#include "exec/nccl/nccl_error.h"

namespace shardwright::exec {
namespace {

constexpr std::uint32_t kWorldChannel = 0;

const char* word_of(CommGroup kind) {
  return kind == CommGroup::kShard       ? "shard"
         : kind == CommGroup::kReplicate ? "replicate"
                                         : "tensor";
}

/// Of the rendezvous: one for each group.
std::uint32_t channel_of(CommGroup kind, std::int64_t first_rank) {
  if (kind == CommGroup::kWorld) return kWorldChannel;
  return (1 + static_cast<std::uint32_t>(kind)) << 24 | static_cast<std::uint32_t>(first_rank);
}

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

RankGroups NcclWorld::groups(const RankMesh& mesh, Device& device, const NativeStreams& streams) {
  const int rank = bootstrap_.rank();
  const std::shared_ptr<NcclGroup> world = groups_.front();
  RankGroups groups = make_groups(
      mesh, rank, [&](CommGroup kind, const std::vector<std::int64_t>& members, int place) {
        const auto size = static_cast<int>(members.size());
        const auto first = static_cast<int>(members.front());
        // A group of all ranks is the world: one set of buffers and connections serves both.
        std::shared_ptr<NcclGroup> group = world;
        if (size != bootstrap_.ranks()) {
          group = std::make_shared<NcclGroup>(*world, first, rank, word_of(kind));
          const std::lock_guard lock(mutex_);
          groups_.push_back(group);
        }
        return std::make_unique<NcclCommunicator>(
            group, bootstrap_, BootstrapGroup{channel_of(kind, first), place, size}, device,
            streams);
      });
  // What failed before the watcher knew of these groups.
  if (bootstrap_.failure()) throw Aborted();
  return groups;
}

RankGroups NcclWorld::groups(int shard_ranks, Device& device, const NativeStreams& streams) {
  return groups(data_parallel_mesh(bootstrap_.ranks(), shard_ranks), device, streams);
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
