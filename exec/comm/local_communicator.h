// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: where they meet, and how one failure ends them all.
//
// Every rank brings its own device; all devices are of one kind and share an address space. A
// collective is a rendezvous of host threads, never a wait of the host for a device: ranks publish
// where their data lie and an event that says when it is there, and after the rendezvous each
// enqueues the copies and sums it needs behind those events. Sums are made in the order that is
// asked for, so they are the same bits as one rank's that adds the contributions in that order.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "exec/communicator.h"
#include "sim/core/layout.h"

namespace shardwright::exec {

class LocalGroup;

class LocalWorld {
 public:
  explicit LocalWorld(const RankMesh& mesh);
  /// Of data parallelism alone. Throws Error when `shard_ranks` does not divide `ranks`.
  LocalWorld(int ranks, int shard_ranks);
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int ranks() const { return static_cast<int>(mesh_.ranks); }
  /// The communicators of one rank, called by its thread. Throws Aborted when a rank has failed.
  RankGroups groups(int rank, Device& device, const OnWorld& on_world = {});

  /// Wakes all ranks that wait for others; they throw Aborted.
  void abort(int rank) noexcept;

  /// Runs body(rank) on a thread for every rank and waits for all. The error of the rank that
  /// failed first is thrown again; failed_rank() says which it was.
  void run(const std::function<void(int rank)>& body);
  int failed_rank() const { return failed_rank_; }

 private:
  friend class LocalGroup;
  void keep_error(int rank, std::exception_ptr error) noexcept;
  void abort_locked(int rank) noexcept;
  /// Whether a rank has failed, also where that is known to its device alone yet; under the lock.
  bool sees_failure() noexcept;

  RankMesh mesh_;
  std::mutex mutex_;  // of all rendezvous of the world
  std::condition_variable changed_;
  bool aborted_ = false;
  int failed_rank_ = -1;
  std::vector<const Device*> devices_;  // by rank; null: it has not asked for its groups
  std::exception_ptr error_;
  std::map<std::pair<CommGroup, std::int64_t>, std::unique_ptr<LocalGroup>>
      groups_;  // by first rank
};

// A communicator that says nothing: nobody is waited for, reductions leave memory as it is, and
// what is gathered is the rank's own share in every place, so that numbers are like those of a
// step. A step over it is all the work of one rank and none of the others'.

class SilentCommunicator final : public Communicator {
 public:
  /// In the place of `other`, which is not kept.
  SilentCommunicator(const Communicator& other, Device& device)
      : rank_(other.rank()), size_(other.size()), ordered_(other.ordered()), device_(device) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool ordered() const override { return ordered_; }
  void all_gather(StreamId stream, Array mine, Array whole) override {
    for (int rank = 0; rank < size_; ++rank) {
      const Array place = share_of(whole, size_, rank);
      const Bytes bytes = std::min(place.bytes(), mine.bytes());
      if (place.data != mine.data && bytes > 0) device_.copy(stream, place.data, mine.data, bytes);
    }
  }
  void reduce_scatter(StreamId, Array, Array, bool, Array, SumOrder) override {}
  void all_reduce(StreamId, Array, SumOrder) override {}
  void post(StreamId, Array, int, int) override {}
  void fetch(StreamId, Array, int, int) override {}
  void broadcast(StreamId, Array, int) override {}
  void send(StreamId, Array, int) override {}
  void receive(StreamId, Array, int) override {}
  void barrier() override {}
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (int rank = 0; rank < size_; ++rank) {
      const std::size_t at = static_cast<std::size_t>(rank) * mine.size();
      if (!mine.empty()) std::memcpy(all.data() + at, mine.data(), mine.size());
    }
  }
  void leave() noexcept override {}

 private:
  int rank_, size_;
  bool ordered_;
  Device& device_;
};

}  // namespace shardwright::exec
