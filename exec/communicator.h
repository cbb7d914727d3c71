// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of a group, enqueued on a device's stream.
//
// All ranks of a group call the same collectives in the same order with equal sizes. Sums are fp32
// and in the order that is asked for where `ordered()` says so: in that of ranks W of them add up
// exactly as one rank does that adds W contributions one after the other. Nothing is divided on the
// way.
//
// Sizes need not divide: rank r of n ranks owns the elements from share_begin(size, n, r) to
// share_begin(size, n, r + 1).
//
// When a rank fails the others do not hang: local ranks throw Aborted from their next call, MPI
// ends the job. leave() must be called before memory that peers may read is given back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/array.h"
#include "exec/device.h"
#include "sim/core/collective.h"
#include "sim/core/layout.h"

namespace shardwright::exec {

constexpr std::int64_t share_begin(std::int64_t size, std::int64_t ranks, std::int64_t rank) {
  return size * rank / ranks;
}

inline Array share_of(const Array& whole, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t begin = share_begin(whole.size, ranks, rank);
  return whole.part(begin, share_begin(whole.size, ranks, rank + 1) - begin);
}

/// Another rank failed; its own error is the one to report.
class Aborted : public std::runtime_error {
 public:
  Aborted() : std::runtime_error("another rank failed") {}
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Whether sums are made in the order that is asked for.
  virtual bool ordered() const = 0;

  /// `whole` = the shares of all ranks. `mine` may be the own share of `whole`.
  virtual void all_gather(StreamId stream, Array mine, Array whole) = 0;
  /// mine = (adds ? mine : 0) + the own share of all ranks' `whole`. `mine` may be the own share of
  /// `whole` when it does not add. `scratch` has the size of `mine` and the type of `whole`; who
  /// cannot add onto `mine` in order uses it. Without it the own share of `whole` is overwritten.
  virtual void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array scratch,
                              SumOrder order = SumOrder::kRanks) = 0;
  /// In place.
  virtual void all_reduce(StreamId stream, Array data, SumOrder order = SumOrder::kRanks) = 0;
  virtual void broadcast(StreamId stream, Array data, int root) = 0;
  /// Between two ranks of the group, in the order of calls.
  virtual void send(StreamId stream, Array data, int to) = 0;
  virtual void receive(StreamId stream, Array data, int from) = 0;
  /// Messages of one channel between two ranks arrive in the order in which they are sent. Who
  /// sends goes on at once, so that stages of a pipeline that send to each other cannot hang; or
  /// its stream waits until the message is taken, and message_stream() keeps others from waiting.
  virtual void post(StreamId stream, Array data, int to, int channel) = 0;
  virtual void fetch(StreamId stream, Array data, int from, int channel) = 0;
  /// The stream for messages to (`sends`) or from a rank on a channel: `stream`, or one that the
  /// device is asked for. To be asked for before the first step.
  virtual StreamId message_stream(StreamId stream, int /*peer*/, int /*channel*/, bool /*sends*/) {
    return stream;
  }
  /// Connects whom messages go between, with one of `data` each way, so that no step has to. All
  /// ranks call it together; the host waits for the others, not for the streams.
  virtual void connect_messages(Array /*data*/) {}

  /// Memory of the device, of this size on every rank, that collectives read and write: some go
  /// faster then. All ranks call it together; to be kept until leave().
  virtual std::unique_ptr<Allocation> allocate(Device& device, Bytes bytes) {
    return device.allocate(bytes);
  }
  /// Throws when something that was enqueued has failed, so that its results mean nothing.
  virtual void check() {}

  /// This rank has failed. Local ranks that wait for it throw Aborted; until then its own streams
  /// might wait for theirs.
  virtual void fail() noexcept {}

  /// The host waits for all ranks.
  virtual void barrier() = 0;
  /// all[r] = what rank r sent; the host waits. Sizes: all = size() * mine.
  virtual void exchange(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Returns when no rank will read memory of another any more: all have left, or failed and ended
  /// their work. The device must be idle. Nothing may be called afterwards.
  virtual void leave() noexcept = 0;
};

/// What every rank of a group says, by rank; the host waits.
template <class T>
std::vector<T> exchange_all(Communicator& group, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  group.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// The same of texts, which may be as long as they like.
std::vector<std::string> exchange_texts(Communicator& group, std::string mine);

/// What a rank does with the world before it has other groups, which ranks that do not agree about
/// the job could not make together.
using OnWorld = std::function<void(Communicator& world)>;

/// The groups a rank belongs to, by the mesh of the plan (sim/core/layout.h). All ranks leave
/// them in one order, also where they are only destroyed, because a rank that leaves waits for the
/// others: as leave() does, the last member first.
struct RankGroups {
  std::unique_ptr<Communicator> pipeline;   // stages, by their number; null where there is one
  std::unique_ptr<Communicator> tensor;     // parts of the same layers; null where there is one
  std::unique_ptr<Communicator> replicate;  // equal shards of different shard groups
  std::unique_ptr<Communicator> shard;      // parameters and gradients
  std::unique_ptr<Communicator> world;      // numbers exchanged once a step, on the compute stream

  std::unique_ptr<Communicator>& of(CommGroup kind) {
    switch (kind) {
      case CommGroup::kPipeline:
        return pipeline;
      case CommGroup::kTensor:
        return tensor;
      case CommGroup::kReplicate:
        return replicate;
      case CommGroup::kShard:
        return shard;
      default:
        return world;
    }
  }
  void leave() const noexcept {
    world->leave();
    shard->leave();
    replicate->leave();
    if (tensor) tensor->leave();
    if (pipeline) pipeline->leave();
  }
};

// Which communicators a rank of a plan's mesh has, whatever connects them.

/// Runs body(rank) on a thread for every rank and waits for all. What one throws, or why a thread
/// could not be started, is the current exception where failed(rank, started) is called; ranks
/// behind one that was not started are not started either, and those that run must not wait for it.
void run_on_threads(int ranks, const std::function<void(int rank)>& body,
                    const std::function<void(int rank, bool started)>& failed);

/// In the order in which every rank makes them.
inline constexpr CommGroup kRankGroups[] = {CommGroup::kWorld, CommGroup::kShard,
                                            CommGroup::kReplicate, CommGroup::kTensor,
                                            CommGroup::kPipeline};

/// Of data parallelism alone. Throws Error when `shard_ranks` does not divide `ranks`.
RankMesh data_parallel_mesh(std::int64_t ranks, std::int64_t shard_ranks);

/// The groups of `rank`: make(kind, members, own place among them) gives a communicator.
/// `on_world` may be empty.
template <class Make>
RankGroups make_groups(const RankMesh& mesh, std::int64_t rank, const OnWorld& on_world,
                       const Make& make) {
  RankGroups groups;
  for (const CommGroup kind : kRankGroups) {
    const bool is_of_model = kind == CommGroup::kTensor || kind == CommGroup::kPipeline;
    if (is_of_model && mesh.group(kind).size == 1) continue;
    const std::vector<std::int64_t> members = mesh.members(kind, rank);
    const auto own = std::find(members.begin(), members.end(), rank) - members.begin();
    groups.of(kind) = make(kind, members, static_cast<int>(own));
    if (kind == CommGroup::kWorld && on_world) on_world(*groups.world);
  }
  return groups;
}

}  // namespace shardwright::exec
