// SPDX-License-Identifier: Apache-2.0
#include "tests/exec_nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/bf16.h"

namespace {

using shardwright::testing::FakeNccl;
using shardwright::testing::FakeStream;
using shardwright::testing::NcclCall;

/// One collective, or one message between two ranks.
struct Gathering {
  std::map<int, const void*> from;
  int read = 0;
};

/// The ranks of one communicator.
struct Clique {
  std::string name;
  int ranks = 0;      // 0: not known yet
  int connected = 0;  // ranks that have come
  int finalized = 0;
  std::map<std::tuple<int, int, std::uint64_t>, Gathering> gatherings;  // from, to, number
  std::vector<std::pair<int, int>> members;                             // of a split: key, rank
};

struct Split {
  int called = 0;
  std::map<int, std::shared_ptr<Clique>> by_color;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  FakeNccl options;
  int next_id = 0;
  int live = 0;
  std::map<std::string, std::shared_ptr<Clique>> by_id;
  std::map<std::pair<Clique*, int>, Split> splits;
  std::map<int, std::vector<NcclCall>> calls;
  std::vector<std::pair<int, int>> blocks;
};

State& state() {
  static State instance;
  return instance;
}

/// What outlives the handle: tasks on streams still look at it.
struct Seat {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool aborted = false;
};

using Numbers = std::map<std::pair<int, int>, std::uint64_t>;

}  // namespace

struct ncclComm {
  std::shared_ptr<Seat> seat;
  int world_rank = 0;
  Numbers next;  // of collectives (-1, -1) and messages
  int splits = 0;
  Split* split = nullptr;  // that it comes from
  int parent_ranks = 0;
  std::pair<int, int> key;
  int polls = 0;
  std::vector<std::function<void()>> pending;
  ncclResult_t failure = ncclSuccess;
  bool finalizing = false;
  int registered = 0;
};

namespace {

thread_local int group_depth = 0;

std::size_t bytes_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

/// Waits in the task until `ready`; false when this rank was aborted.
template <class Ready>
bool await(std::unique_lock<std::mutex>& lock, const Seat& seat, Ready&& ready) {
  state().changed.wait(lock, [&] { return seat.aborted || ready(); });
  return !seat.aborted;
}

/// Shows `from` to all, lets work(sources) make the result, and writes it when all have read.
void meet(const std::shared_ptr<Seat>& seat, std::uint64_t number, const void* from,
          const std::function<std::vector<std::byte>(const std::map<int, const void*>&)>& work,
          void* to) {
  Clique& clique = *seat->clique;
  std::unique_lock lock(state().mutex);
  Gathering& gathering = clique.gatherings[{-1, -1, number}];
  gathering.from[seat->rank] = from;
  state().changed.notify_all();
  // A rank that is aborted takes its memory away with it, so nobody may read it from then on.
  const auto withdraw = [&] { gathering.from.erase(seat->rank); };
  if (!await(lock, *seat, [&] { return std::ssize(gathering.from) == clique.ranks; })) {
    return withdraw();
  }
  const std::vector<std::byte> result = work(gathering.from);
  ++gathering.read;
  state().changed.notify_all();
  if (!await(lock, *seat, [&] { return gathering.read >= clique.ranks; })) return withdraw();
  lock.unlock();
  if (!result.empty()) std::memcpy(to, result.data(), result.size());
}

/// The sum of `count` elements from `first` on, in the order of a ring that ends at `last`.
std::vector<std::byte> ring_sum(const std::map<int, const void*>& sources, std::size_t first,
                                std::size_t count, ncclDataType_t type, int last) {
  std::vector<std::byte> out(count * bytes_of(type));
  const int ranks = static_cast<int>(sources.size());
  const auto add = [&](auto* sums) {
    using T = std::remove_pointer_t<decltype(sums)>;
    using shardwright::kernels::from_float;
    using shardwright::kernels::to_float;
    for (std::size_t i = 0; i < count; ++i) {
      T sum{};
      for (int hop = 1; hop <= ranks; ++hop) {
        const T x = static_cast<const T*>(sources.at((last + hop) % ranks))[first + i];
        sum = hop == 1 ? x : from_float<T>(to_float(sum) + to_float(x));
      }
      sums[i] = sum;
    }
  };
  if (type == ncclFloat32) {
    add(reinterpret_cast<float*>(out.data()));
  } else {
    add(reinterpret_cast<shardwright::kernels::BFloat16*>(out.data()));
  }
  return out;
}

std::vector<std::byte> bytes_at(const void* from, std::size_t count, ncclDataType_t type) {
  const auto* begin = static_cast<const std::byte*>(from);
  return {begin, begin + count * bytes_of(type)};
}

/// Logs the call and, at once or when it is asked for again, puts `task` on the stream.
ncclResult_t enqueue(ncclComm_t comm, NcclCall call, cudaStream_t stream,
                     std::function<void()> task) {
  auto* fake = reinterpret_cast<FakeStream*>(stream);
  std::unique_lock lock(state().mutex);
  State& s = state();
  call.comm = comm->seat->clique->name;
  call.rank = comm->seat->rank;
  call.ranks = comm->seat->clique->ranks;
  call.world_rank = comm->world_rank;
  call.stream = fake->id;
  std::vector<NcclCall>& log = s.calls[comm->world_rank];
  const auto calls = std::ssize(log);
  if (comm->world_rank == s.options.failing_rank && calls >= s.options.failing_collective)
    comm->failure = s.options.failure;
  const bool is_stuck =
      comm->world_rank == s.options.stuck_rank && calls >= s.options.stuck_collective;
  if (comm->failure != ncclSuccess || is_stuck) {
    task = [seat = comm->seat] {
      std::unique_lock waiting(state().mutex);
      await(waiting, *seat, [] { return false; });
    };
  }
  log.push_back(std::move(call));
  auto put = [fake, task = std::move(task)] { fake->device->call(fake->id, task); };
  if (s.options.polls == 0 && group_depth == 0) {
    lock.unlock();
    put();
    return ncclSuccess;
  }
  comm->pending.push_back(std::move(put));
  comm->polls = s.options.polls;
  return ncclInProgress;
}

std::uint64_t number_of(ncclComm_t comm, int from = -1, int to = -1) {
  const std::lock_guard lock(state().mutex);
  return comm->next[{from, to}]++;
}

NcclCall named(const char* name, std::size_t count, ncclDataType_t type, int peer, const void* from,
               void* to) {
  return {
      .name = name, .comm = {}, .count = count, .type = type, .peer = peer, .from = from, .to = to};
}

/// Places of a split are known when all ranks of the parent have called.
bool settle_split(ncclComm_t comm) {
  if (comm->split == nullptr) return true;
  if (comm->split->called < comm->parent_ranks) return false;
  Clique& clique = *comm->seat->clique;
  if (clique.ranks == 0) {
    std::sort(clique.members.begin(), clique.members.end());
    clique.ranks = static_cast<int>(clique.members.size());
  }
  comm->seat->rank = static_cast<int>(
      std::find(clique.members.begin(), clique.members.end(), comm->key) - clique.members.begin());
  comm->split = nullptr;
  return true;
}

}  // namespace

namespace shardwright::testing {

void reset_fake_nccl(const FakeNccl& options) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.options = options;
  s.by_id.clear();
  s.splits.clear();
  s.calls.clear();
  s.blocks.clear();
  s.live = 0;
}

std::vector<NcclCall> nccl_calls(int world_rank) {
  const std::lock_guard lock(state().mutex);
  return state().calls[world_rank];
}

std::vector<std::pair<int, int>> nccl_blocks() {
  const std::lock_guard lock(state().mutex);
  return state().blocks;
}

int live_nccl_objects() {
  const std::lock_guard lock(state().mutex);
  return state().live;
}

}  // namespace shardwright::testing

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return state().options.last_error;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(state().mutex);
  std::memset(id, 0, sizeof *id);
  const std::string text = "fake " + std::to_string(state().next_id++);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(state().mutex);
  std::shared_ptr<Clique>& clique = state().by_id[id.internal];
  if (!clique) clique = std::make_shared<Clique>();
  if (config->blocking != 0 || (clique->ranks != 0 && clique->ranks != ranks)) {
    return ncclInvalidArgument;
  }
  state().blocks.emplace_back(config->maxCTAs, config->CTAPolicy);
  clique->ranks = ranks;
  clique->name = config->commName;
  ++clique->connected;
  ++state().live;
  *out = new ncclComm;
  (*out)->seat = std::make_shared<Seat>(Seat{clique, rank, false});
  (*out)->world_rank = rank;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out,
                           ncclConfig_t* config) {
  const std::lock_guard lock(state().mutex);
  Split& split = state().splits[{parent->seat->clique.get(), parent->splits++}];
  std::shared_ptr<Clique>& clique = split.by_color[color];
  if (!clique) clique = std::make_shared<Clique>();
  state().blocks.emplace_back(config->maxCTAs, config->CTAPolicy);
  clique->name = config->commName;
  clique->members.emplace_back(key, parent->seat->rank);
  ++split.called;
  ++state().live;
  *out = new ncclComm;
  (*out)->seat = std::make_shared<Seat>(Seat{clique, 0, false});
  (*out)->world_rank = parent->world_rank;
  (*out)->split = &split;
  (*out)->parent_ranks = parent->seat->clique->ranks;
  (*out)->key = {key, parent->seat->rank};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  std::vector<std::function<void()>> ready;
  {
    const std::lock_guard lock(state().mutex);
    const Clique& clique = *comm->seat->clique;
    *result = ncclInProgress;
    if (!settle_split(comm)) return ncclSuccess;
    if (clique.members.empty() && clique.connected < clique.ranks) return ncclSuccess;
    if (comm->finalizing && clique.finalized < clique.ranks) return ncclSuccess;
    if (!comm->pending.empty() && comm->polls-- > 0) return ncclSuccess;
    *result = comm->failure;
    ready.swap(comm->pending);
  }
  for (const std::function<void()>& put : ready) put();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const std::lock_guard lock(state().mutex);
  *rank = comm->seat->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const std::lock_guard lock(state().mutex);
  *count = comm->seat->clique->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(state().mutex);
  comm->finalizing = true;
  ++comm->seat->clique->finalized;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const std::lock_guard lock(state().mutex);
    --state().live;
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(state().mutex);
    comm->seat->aborted = true;
    state().live -= 1 + comm->registered;
    state().changed.notify_all();
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t, void** handle) {
  const std::lock_guard lock(state().mutex);
  if (!state().options.registers) return ncclInvalidUsage;
  *handle = data;
  ++comm->registered;
  ++state().live;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  const std::lock_guard lock(state().mutex);
  --comm->registered;
  --state().live;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  --group_depth;
  return ncclInProgress;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::uint64_t number = number_of(comm);
  return enqueue(comm, named("ncclAllGather", count, type, -1, from, to), stream,
                 [seat = comm->seat, number, from, to, count, type] {
                   const auto all = [&](const std::map<int, const void*>& sources) {
                     std::vector<std::byte> whole;
                     for (const auto& [rank, source] : sources) {
                       const auto part = bytes_at(source, count, type);
                       whole.insert(whole.end(), part.begin(), part.end());
                     }
                     return whole;
                   };
                   meet(seat, number, from, all, to);
                 });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  const std::uint64_t number = number_of(comm);
  return enqueue(comm, named("ncclReduceScatter", count, type, -1, from, to), stream,
                 [seat = comm->seat, number, from, to, count, type] {
                   const auto sum = [&](const std::map<int, const void*>& sources) {
                     const auto first = static_cast<std::size_t>(seat->rank) * count;
                     return ring_sum(sources, first, count, type, seat->rank);
                   };
                   meet(seat, number, from, sum, to);
                 });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  const std::uint64_t number = number_of(comm);
  return enqueue(comm, named("ncclAllReduce", count, type, -1, from, to), stream,
                 [seat = comm->seat, number, from, to, count, type] {
                   const auto sum = [&](const std::map<int, const void*>& sources) {
                     return ring_sum(sources, 0, count, type, 0);
                   };
                   meet(seat, number, from, sum, to);
                 });
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  const std::uint64_t number = number_of(comm);
  return enqueue(comm, named("ncclReduce", count, type, root, from, to), stream,
                 [seat = comm->seat, number, from, to, count, type, root] {
                   const auto sum = [&](const std::map<int, const void*>& sources) {
                     if (seat->rank != root) return std::vector<std::byte>();
                     return ring_sum(sources, 0, count, type, root);
                   };
                   meet(seat, number, from, sum, to);
                 });
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::uint64_t number = number_of(comm);
  return enqueue(comm, named("ncclBroadcast", count, type, root, from, to), stream,
                 [seat = comm->seat, number, from, to, count, type, root] {
                   const auto copy = [&](const std::map<int, const void*>& sources) {
                     return bytes_at(sources.at(root), count, type);
                   };
                   meet(seat, number, from, copy, to);
                 });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const int rank = comm->seat->rank;
  const std::uint64_t number = number_of(comm, rank, peer);
  return enqueue(comm, named("ncclSend", count, type, peer, from, nullptr), stream,
                 [seat = comm->seat, number, from, rank, peer] {
                   std::unique_lock lock(state().mutex);
                   Gathering& letter = seat->clique->gatherings[{rank, peer, number}];
                   letter.from[rank] = from;
                   state().changed.notify_all();
                   if (!await(lock, *seat, [&] { return letter.read > 0; }))
                     letter.from.erase(rank);
                 });
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const int rank = comm->seat->rank;
  const std::uint64_t number = number_of(comm, peer, rank);
  return enqueue(comm, named("ncclRecv", count, type, peer, nullptr, to), stream,
                 [seat = comm->seat, number, to, count, type, rank, peer] {
                   std::unique_lock lock(state().mutex);
                   Gathering& letter = seat->clique->gatherings[{peer, rank, number}];
                   if (!await(lock, *seat, [&] { return !letter.from.empty(); })) return;
                   std::memcpy(to, letter.from.at(peer), count * bytes_of(type));
                   ++letter.read;
                   state().changed.notify_all();
                 });
}

}  // extern "C"
