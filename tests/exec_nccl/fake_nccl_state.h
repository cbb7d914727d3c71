// SPDX-License-Identifier: Apache-2.0
// What the fake of NCCL knows of its communicators, and how a call's work waits on a stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/exec_nccl/fake_nccl.h"

namespace shardwright::testing::nccl {

using Bytes = std::vector<std::byte>;
/// What a message or a collective is numbered by: sender and receiver, or -1 and -1.
using Pair = std::pair<int, int>;
inline constexpr Pair kAll{-1, -1};

/// One collective, or one message between two ranks.
struct Gathering {
  std::map<int, const void*> from;
  int read = 0;
};

/// How a collective goes.
enum class Path { kRing, kNvls, kCopies };

/// The ranks of one communicator.
struct Clique {
  std::string name;
  int ranks = 0;      // 0: not known yet
  int connected = 0;  // ranks that have come
  int finalized = 0;
  std::map<std::tuple<int, int, std::uint64_t>, Gathering> gatherings;  // from, to, number
  std::map<std::uint64_t, std::set<std::ptrdiff_t>> offsets;  // of registered memory, by collective
  std::vector<std::pair<int, int>> members;                   // of a split: key, rank
  std::map<Pair, std::set<int>> reached;  // which ends of a path have had a call on it
};

struct Split {
  int called = 0;
  std::map<int, std::shared_ptr<Clique>> by_color;
};

/// Of one rank of the world: its kernels of NCCL, in the order in which its host launched them.
struct Launches {
  std::uint64_t launched = 0, started = 0;
};

/// What outlives the handle: tasks on streams still look at it.
struct Seat {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool aborted = false;
  std::uint64_t launched = 0, ended = 0;  // kernels of this communicator, one after the other
};

/// A call's part of a kernel. All calls of a group begin, then all take, then all end.
struct Work {
  std::shared_ptr<Seat> seat{};
  Pair pair = kAll;
  std::uint64_t number = 0;
  const void* from = nullptr;  // shown to the others; null: of a receive
  void* to = nullptr;
  /// Makes the result of what all have shown.
  std::function<Bytes(const std::map<int, const void*>&)> make{};
  Bytes made{};
};

struct Comm {
  std::shared_ptr<Seat> seat;
  int world_rank = 0;
  std::map<Pair, std::uint64_t> next;  // numbers of collectives and messages
  int splits = 0;
  Split* split = nullptr;  // that it comes from
  int parent_ranks = 0;
  std::pair<int, int> key;
  int polls = 0;
  std::vector<std::function<void()>> pending;
  std::set<Pair> connecting;  // paths on which both ends must have called before work is enqueued
  ncclResult_t failure = ncclSuccess;
  bool finalizing = false;
  int registered = 0;
  int policy = NCCL_CTA_POLICY_DEFAULT;
  std::map<const std::byte*, std::size_t> cache;  // registered, by address
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
  std::map<int, Launches> launches;                // by rank of the world
  std::map<const std::byte*, std::size_t> memory;  // of ncclMemAlloc
  NcclPaths paths;
};

State& state();
std::size_t bytes_of(ncclDataType_t type);
/// Logs the call and puts its work, or that of its group, on the stream: at once, or when the
/// caller has asked again.
ncclResult_t enqueue(Comm& comm, NcclCall call, cudaStream_t stream, Work work);
ncclResult_t start_group();
ncclResult_t end_group();

}  // namespace shardwright::testing::nccl

struct ncclComm : shardwright::testing::nccl::Comm {};
