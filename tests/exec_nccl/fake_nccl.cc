// SPDX-License-Identifier: Apache-2.0
#include "tests/exec_nccl/fake_nccl.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "exec/libraries/rules.h"
#include "kernels/bf16.h"
#include "tests/exec_nccl/fake_nccl_state.h"

namespace {

using namespace shardwright::testing::nccl;
using shardwright::testing::FakeNccl;
using shardwright::testing::NcclCall;
using shardwright::testing::NcclPaths;
using Sources = std::map<int, const void*>;

constexpr std::align_val_t kMemoryAlignment{4096};

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

/// The same by NVLS, which adds in whatever order packets come, in fp32.
Bytes switch_sum(const Sources& sources, std::size_t first, std::size_t count, ncclDataType_t type,
                 std::uint64_t call) {
  std::vector<int> order;
  for (const auto& [rank, source] : sources) order.push_back(rank);
  std::mt19937_64 shuffle(call);
  std::shuffle(order.begin(), order.end(), shuffle);
  Bytes out(count * bytes_of(type));
  const auto add = [&](auto* sums) {
    using T = std::remove_pointer_t<decltype(sums)>;
    using shardwright::kernels::from_float;
    using shardwright::kernels::to_float;
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const int rank : order) {
        sum += to_float(static_cast<const T*>(sources.at(rank))[first + i]);
      }
      sums[i] = from_float<T>(sum);
    }
  };
  if (type == ncclFloat32) {
    add(reinterpret_cast<float*>(out.data()));
  } else {
    add(reinterpret_cast<shardwright::kernels::BFloat16*>(out.data()));
  }
  return out;
}

/// The entry of `map` in which the bytes lie.
const std::byte* base_of(const std::map<const std::byte*, std::size_t>& map, const void* data,
                         std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  auto after = map.upper_bound(begin);
  if (after == map.begin()) return nullptr;
  const auto& [base, size] = *--after;
  return begin + bytes <= base + size ? base : nullptr;
}

bool is_set_by_hand() {
  std::istringstream names(
      shardwright::exec::libraries::rule_text("nccl.chosen_by_hand", "variables"));
  for (std::string name; names >> name;) {
    if (std::getenv(name.c_str()) != nullptr) return true;
  }
  return false;
}

bool has_nvls(const Comm& comm) {
  const std::string off = shardwright::exec::libraries::rule_text("nccl.order_of_sums", "off");
  const std::size_t end = off.find('=');
  const char* value = std::getenv(off.substr(0, end).c_str());
  const char* algorithm = std::getenv("NCCL_ALGO");
  if (value != nullptr && value == off.substr(end + 1)) return false;
  if (algorithm != nullptr && std::string_view(algorithm) != "NVLS") return false;
  return state().options.has_nvswitch && comm.seat->clique->ranks > 1;
}

/// How a collective goes, and its number among those of its communicator.
struct Choice {
  std::shared_ptr<Seat> seat;
  Path path = Path::kRing;
  std::uint64_t number = 0;
};

/// What enqueue.cc (getAlgoInfo) and transport/nvls.cc (nvlsRegisterBuffer) decide on each rank.
/// NVLS must have registered what is divided or made whole; at which offset, all ranks compare.
Choice chosen(Comm& comm, const std::string& name, const void* from, const void* to,
              std::size_t count, ncclDataType_t type) {
  const std::lock_guard lock(state().mutex);
  Choice choice{comm.seat, Path::kRing, comm.next[kAll]};
  if (!has_nvls(comm)) return choice;
  const bool gathers = name == "ncclAllGather";
  if (!gathers && name != "ncclReduceScatter") {
    if (name == "ncclAllReduce") choice.path = Path::kNvls;
    return choice;
  }
  const std::size_t share = count * bytes_of(type);
  const std::size_t whole = share * static_cast<std::size_t>(comm.seat->clique->ranks);
  const bool are_known = base_of(comm.cache, from, gathers ? share : whole) != nullptr &&
                         base_of(comm.cache, to, gathers ? whole : share) != nullptr;
  if (comm.policy != NCCL_CTA_POLICY_EFFICIENCY || is_set_by_hand() || !are_known) return choice;
  const State& s = state();
  const void* used = gathers ? to : from;
  const std::byte* base = base_of(s.memory, used, whole);
  choice.path = base == nullptr || !s.options.shares_memory || s.options.in_one_process
                    ? Path::kCopies
                    : Path::kNvls;
  comm.seat->clique->offsets[choice.number].insert(static_cast<const std::byte*>(used) - base);
  return choice;
}

/// The same, once all ranks have called; counts it.
Path settle(const Choice& choice) {
  Clique& clique = *choice.seat->clique;
  const auto offsets = clique.offsets.find(choice.number);
  const bool differ = offsets != clique.offsets.end() && offsets->second.size() > 1;
  const Path path = choice.path == Path::kNvls && differ ? Path::kCopies : choice.path;
  NcclPaths& paths = state().paths;
  if (choice.seat->rank == 0)
    ++(path == Path::kRing ? paths.rings : path == Path::kNvls ? paths.nvls : paths.copies);
  return path;
}

/// A sum of `count` elements from `first` on by the way that is chosen; that of rings ends at
/// `last`.
Bytes sum_by(const Choice& choice, const Sources& sources, std::size_t first, std::size_t count,
             ncclDataType_t type, int last) {
  const Path path = settle(choice);
  if (path == Path::kRing) return ring_sum(sources, first, count, type, last);
  // All ranks of a call draw alike, and no two calls of any run.
  const auto run = static_cast<std::uint64_t>(state().next_id);
  return switch_sum(sources, first, count, type,
                    run << 32 | choice.number << 1 | (path == Path::kCopies ? 1 : 0));
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
  s.memory.clear();
  s.paths = {};
  s.live = 0;
}

FakeNccl fake_nccl() {
  const std::lock_guard lock(state().mutex);
  return state().options;
}

std::vector<NcclCall> nccl_calls(int world_rank) {
  const std::lock_guard lock(state().mutex);
  return state().calls[world_rank];
}

std::vector<std::pair<int, int>> nccl_blocks() {
  const std::lock_guard lock(state().mutex);
  return state().blocks;
}

NcclPaths nccl_paths() {
  const std::lock_guard lock(state().mutex);
  return state().paths;
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
  (*out)->policy = config->CTAPolicy;
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
  (*out)->policy = config->CTAPolicy;
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

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  const std::lock_guard lock(state().mutex);
  if (!state().options.registers) return ncclInvalidUsage;
  *handle = data;
  comm->cache[static_cast<const std::byte*>(data)] = bytes;
  ++comm->registered;
  ++state().live;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(state().mutex);
  comm->cache.erase(static_cast<const std::byte*>(handle));
  --comm->registered;
  --state().live;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  *data = ::operator new(bytes, kMemoryAlignment);
  const std::lock_guard lock(state().mutex);
  state().memory[static_cast<const std::byte*>(*data)] = bytes;
  ++state().live;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  {
    const std::lock_guard lock(state().mutex);
    state().memory.erase(static_cast<const std::byte*>(data));
    --state().live;
  }
  ::operator delete(data, kMemoryAlignment);
  return ncclSuccess;
}

/// The driver, as far as it is asked whether memory can be shared.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const auto get = [](void* value, CUpointer_attribute, CUdeviceptr data) {
    const std::lock_guard lock(state().mutex);
    const bool shares = state().options.shares_memory &&
                        base_of(state().memory, reinterpret_cast<void*>(data), 1) != nullptr;
    *static_cast<unsigned long long*>(value) =
        shares ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return CUDA_SUCCESS;
  };
  if (std::string_view(name) != "cuPointerGetAttribute") return cudaErrorInvalidValue;
  *function = reinterpret_cast<void*>(
      static_cast<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>(get));
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

ncclResult_t ncclGroupStart() {
  return start_group();
}

ncclResult_t ncclGroupEnd() {
  return end_group();
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const Choice choice = chosen(*comm, "ncclAllGather", from, to, count, type);
  const auto all = [=](const Sources& sources) {
    settle(choice);
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
  const Choice choice = chosen(*comm, "ncclReduceScatter", from, to, count, type);
  const auto sum = [=](const Sources& sources) {
    return sum_by(choice, sources, static_cast<std::size_t>(rank) * count, count, type, rank);
  };
  return enqueue(*comm, named("ncclReduceScatter", count, type, -1, from, to), stream,
                 {.from = from, .to = to, .make = sum});
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  const Choice choice = chosen(*comm, "ncclAllReduce", from, to, count, type);
  const auto sum = [=](const Sources& sources) {
    return sum_by(choice, sources, 0, count, type, 0);
  };
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
