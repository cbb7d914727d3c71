// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "exec/comm/rank_groups.h"
#include "exec/nccl/nccl_error.h"

namespace shardwright::exec {
namespace {

constexpr std::uint32_t kWorldChannel = 0;

/// Of a queue of messages, which waits on the device until its message comes; several do beside a
/// layer's kernels.
constexpr int kMostQueueCtas = 2;

const char* word_of(CommGroup kind) {
  switch (kind) {
    case CommGroup::kShard:
      return "shard";
    case CommGroup::kReplicate:
      return "replicate";
    case CommGroup::kPipeline:
      return "pipeline";
    default:
      return "tensor";
  }
}

/// Queues without a rank in common are split off at once. In rounds, the first that has room.
std::vector<std::vector<MessageQueue>> rounds_of(const std::vector<MessageQueue>& queues) {
  std::vector<std::vector<MessageQueue>> rounds;
  for (const MessageQueue& queue : queues) {
    const auto meets = [&](const MessageQueue& other) {
      return queue.from == other.from || queue.from == other.to || queue.to == other.from ||
             queue.to == other.to;
    };
    const auto has_room = [&](const std::vector<MessageQueue>& round) {
      return std::none_of(round.begin(), round.end(), meets);
    };
    auto round = std::find_if(rounds.begin(), rounds.end(), has_room);
    if (round == rounds.end()) round = rounds.insert(round, std::vector<MessageQueue>{});
    round->push_back(queue);
  }
  return rounds;
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

std::shared_ptr<NcclGroup> NcclWorld::keep(std::shared_ptr<NcclGroup> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
  return group;
}

std::vector<NcclQueue> NcclWorld::make_queues(const std::vector<MessageQueue>& queues,
                                              NcclGroup& group, int rank) {
  std::vector<NcclQueue> mine;
  for (const std::vector<MessageQueue>& round : rounds_of(queues)) {
    const auto own = std::find_if(round.begin(), round.end(), [&](const MessageQueue& queue) {
      return queue.from == rank || queue.to == rank;
    });
    if (own == round.end()) {
      group.split_without();
      continue;
    }
    const char* name = own->backward ? "backward messages" : "forward messages";
    const auto color = static_cast<int>(own - round.begin());
    mine.push_back(
        {*own, keep(std::make_shared<NcclGroup>(group, color, rank, name, kMostQueueCtas))});
  }
  return mine;
}

RankGroups NcclWorld::groups(const RankMesh& mesh, const std::vector<MessageQueue>& queues,
                             Device& device, const NativeStreams& streams,
                             const OnWorld& on_world) {
  const int rank = bootstrap_.rank();
  const std::shared_ptr<NcclGroup> world = groups_.front();
  const auto make = [&](CommGroup kind, const std::vector<std::int64_t>& members, int place) {
    const auto size = static_cast<int>(members.size());
    const auto first = static_cast<int>(members.front());
    // A group of all ranks is the world: one set of buffers and connections serves both.
    std::shared_ptr<NcclGroup> group = world;
    if (size != bootstrap_.ranks())
      group = keep(std::make_shared<NcclGroup>(*world, first, rank, word_of(kind)));
    std::vector<NcclQueue> mine;
    if (kind == CommGroup::kPipeline) mine = make_queues(queues, *group, place);
    return std::make_unique<NcclCommunicator>(group, bootstrap_,
                                              BootstrapGroup{channel_of(kind, first), place, size},
                                              device, streams, std::move(mine));
  };
  RankGroups groups = make_groups(mesh, rank, on_world, make);
  // What failed before the watcher knew of these groups.
  if (bootstrap_.failure()) throw Aborted();
  return groups;
}

RankGroups NcclWorld::groups(int shard_ranks, Device& device, const NativeStreams& streams) {
  return groups(data_parallel_mesh(bootstrap_.ranks(), shard_ranks), {}, device, streams);
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
