// SPDX-License-Identifier: Apache-2.0
#include "tests/exec_nccl/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/bf16.h"
#include "tests/exec_nccl/fake_nccl_state.h"

namespace {

using namespace shardwright::testing::nccl;
using shardwright::testing::FakeNccl;
using shardwright::testing::NcclCall;
using Sources = std::map<int, const void*>;

/// The sum of `count` elements from `first` on, in the order of a ring that ends at `last`.
Bytes ring_sum(const Sources& sources, std::size_t first, std::size_t count, ncclDataType_t type,
               int last) {
  Bytes out(count * bytes_of(type));
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

Bytes bytes_at(const void* from, std::size_t count, ncclDataType_t type) {
  const auto* begin = static_cast<const std::byte*>(from);
  return {begin, begin + count * bytes_of(type)};
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
  s.launches.clear();
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
  (*out)->seat = std::make_shared<Seat>(Seat{.clique = clique, .rank = rank});
  (*out)->world_rank = rank;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out,
                           ncclConfig_t* config) {
  const std::lock_guard lock(state().mutex);
  Split& split = state().splits[{parent->seat->clique.get(), parent->splits++}];
  if (color == NCCL_SPLIT_NOCOLOR) {
    ++split.called;
    *out = nullptr;
    return ncclSuccess;
  }
  std::shared_ptr<Clique>& clique = split.by_color[color];
  if (!clique) clique = std::make_shared<Clique>();
  state().blocks.emplace_back(config->maxCTAs, config->CTAPolicy);
  clique->name = config->commName;
  clique->members.emplace_back(key, parent->seat->rank);
  ++split.called;
  ++state().live;
  *out = new ncclComm;
  (*out)->seat = std::make_shared<Seat>(Seat{.clique = clique});
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
    for (const Pair& path : comm->connecting) {
      if (comm->seat->clique->reached[path].size() < 2) return ncclSuccess;
    }
    comm->connecting.clear();
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
  return start_group();
}

ncclResult_t ncclGroupEnd() {
  return end_group();
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const auto all = [=](const Sources& sources) {
    Bytes whole;
    for (const auto& [rank, source] : sources) {
      const Bytes part = bytes_at(source, count, type);
      whole.insert(whole.end(), part.begin(), part.end());
    }
    return whole;
  };
  return enqueue(*comm, named("ncclAllGather", count, type, -1, from, to), stream,
                 {.from = from, .to = to, .make = all});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  const int rank = comm->seat->rank;
  const auto sum = [=](const Sources& sources) {
    return ring_sum(sources, static_cast<std::size_t>(rank) * count, count, type, rank);
  };
  return enqueue(*comm, named("ncclReduceScatter", count, type, -1, from, to), stream,
                 {.from = from, .to = to, .make = sum});
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  const auto sum = [=](const Sources& sources) { return ring_sum(sources, 0, count, type, 0); };
  return enqueue(*comm, named("ncclAllReduce", count, type, -1, from, to), stream,
                 {.from = from, .to = to, .make = sum});
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  const bool is_root = comm->seat->rank == root;
  const auto sum = [=](const Sources& sources) {
    return is_root ? ring_sum(sources, 0, count, type, root) : Bytes();
  };
  return enqueue(*comm, named("ncclReduce", count, type, root, from, to), stream,
                 {.from = from, .to = to, .make = sum});
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const auto copy = [=](const Sources& sources) { return bytes_at(sources.at(root), count, type); };
  return enqueue(*comm, named("ncclBroadcast", count, type, root, from, to), stream,
                 {.from = from, .to = to, .make = copy});
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return enqueue(*comm, named("ncclSend", count, type, peer, from, nullptr), stream,
                 {.pair = {comm->seat->rank, peer}, .from = from});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const auto copy = [=](const Sources& sources) { return bytes_at(sources.at(peer), count, type); };
  return enqueue(*comm, named("ncclRecv", count, type, peer, nullptr, to), stream,
                 {.pair = {peer, comm->seat->rank}, .to = to, .make = copy});
}

}  // extern "C"
