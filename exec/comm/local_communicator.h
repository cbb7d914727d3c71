// SPDX-License-Identifier: Apache-2.0
// The collectives of one local rank. Sums are made in the order that is asked for, so they are the
// same bits as one rank's that adds the contributions in that order.
#pragma once

#include <algorithm>
#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
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
struct LocalParcel;

class LocalCommunicator final : public Communicator {
 public:
  /// `rank` in the group, `world_rank` for reports of failure.
  LocalCommunicator(LocalGroup& group, int rank, int world_rank, Device& device);
  ~LocalCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override;
  bool ordered() const override { return true; }

  void all_gather(StreamId stream, Array mine, Array whole) override;
  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array scratch,
                      SumOrder order) override;
  void all_reduce(StreamId stream, Array data, SumOrder order) override;
  void broadcast(StreamId stream, Array data, int root) override;
  void send(StreamId stream, Array data, int to) override;
  void receive(StreamId stream, Array data, int from) override;
  void post(StreamId stream, Array data, int to, int channel) override;
  void fetch(StreamId stream, Array data, int from, int channel) override;
  void fail() noexcept override;
  void barrier() override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave() noexcept override;

 private:
  /// Shows `data` to all and meets them; afterwards everyone's data may be read behind their
  /// events.
  void publish(StreamId stream, void* data);
  /// Lets `stream` go on only when all ranks have read what they need.
  void finish(StreamId stream);
  void wait_for(StreamId stream, int rank);
  /// Of replicas that add up one after the other. Virtual clocks do not count that: what the sum
  /// lasts is said, and all replicas meet where it is shown to them.
  void wait_in_order(StreamId stream, const Event& event);
  /// out = (adds ? out : 0) + the parts [first, first + out.size) of everyone's published data.
  void fold(StreamId stream, DType dtype, std::int64_t first, Array out, bool adds, SumOrder order);
  /// Messages between devices whose memory the host cannot read go through pinned memory of it,
  /// which the plan does not count. The host of the receiver waits until its sender's has issued.
  void post_parcel(StreamId stream, const Array& data, int to, int channel);
  void fetch_parcel(StreamId stream, const Array& data, LocalParcel& parcel);
  LocalParcel& free_parcel(Bytes bytes);

  LocalGroup& group_;
  int rank_;
  int world_rank_;
  Device& device_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> done_;
  std::unique_ptr<Event> sent_;
  std::vector<std::unique_ptr<Event>> received_;  // by sender
  std::vector<std::unique_ptr<LocalParcel>> parcels_;
  std::map<const LocalParcel*, std::unique_ptr<Event>> emptied_;  // of other ranks
  bool left_ = false;
};

// Ranks that are threads of one process: where they meet, and how one failure ends them all.
//
// Every rank brings its own device; all devices are of one kind and share an address space. A
// collective is a rendezvous of host threads, never a wait of the host for a device: ranks publish
// where their data lie and an event that says when it is there, and after the rendezvous each
// enqueues the copies and sums it needs behind those events.

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

// A group of local ranks: the table of what they published, barriers, and letter boxes for pairs.

/// Where a message of devices that the host cannot read lies until it is taken.
struct LocalParcel {
  std::unique_ptr<Allocation> memory;  // of the host, pinned
  Bytes bytes = 0;
  std::unique_ptr<Event> filled;
  const Event* emptied = nullptr;    // the receiver's; null: new
  std::atomic<bool> is_free{false};  // to be filled behind that
};

class LocalGroup {
 public:
  LocalGroup(LocalWorld& world, int ranks);

  /// What a rank sends to another one.
  struct Letter {
    const void* data = nullptr;
    const Event* ready = nullptr;  // when the data are there
    const Event* done = nullptr;   // when they have been read
  };

  int ranks() const { return static_cast<int>(members_.size()); }
  /// Where a rank's data of the current collective are: written before its first barrier, read
  /// before its second.
  void*& data(int rank) { return members_[static_cast<std::size_t>(rank)].data; }
  /// When a rank's data are there: recorded before the first barrier, read before the second.
  const Event& ready(int rank) const { return *members_[static_cast<std::size_t>(rank)].ready; }
  /// When a rank has read what it needs: recorded between the barriers, read after the second. The
  /// next collective's first barrier comes before it is recorded again.
  const Event& done(int rank) const { return *members_[static_cast<std::size_t>(rank)].done; }

  /// Returns when all ranks have called it; throws Aborted when that cannot happen any more.
  void barrier();

  /// A letter from one rank to another: put() by the sender, then take() and finish() by the
  /// receiver, then collected() by the sender.
  void put(int from, int to, const Letter& letter);
  Letter take(int from, int to);
  void finish(int from, int to, const Event* done);
  const Event* collected(int from, int to);

  /// Messages from a rank to another one on a channel, in order; what is sent waits here.
  struct Channel {
    int from = 0, to = 0, number = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes what this compares with for one
    auto operator<=>(const Channel&) const = default;
  };
  struct Message {
    std::vector<std::byte> bytes;
    Nanoseconds arrives_ns = 0;     // where streams have clocks
    LocalParcel* parcel = nullptr;  // in place of the bytes
  };
  void post(const Channel& channel, Message message);
  /// Throws Aborted when none can come any more, or who waits gives up.
  Message fetch(const Channel& channel, const std::function<bool()>& gives_up);

  void join(int rank, const Event* ready, const Event* done);
  /// Returns when all that joined have left. After a failure that includes ranks that are still
  /// unwinding.
  void leave() noexcept;
  void abort(int rank) noexcept;

 private:
  struct Member {
    void* data = nullptr;
    const Event* ready = nullptr;
    const Event* done = nullptr;
  };
  struct Box {
    enum class State { kEmpty, kPut, kFinished };
    Letter letter;
    State state = State::kEmpty;
  };
  Box& box(int from, int to) {
    return boxes_[static_cast<std::size_t>(from) * members_.size() + static_cast<std::size_t>(to)];
  }
  template <class Condition>
  void await(std::unique_lock<std::mutex>& lock, Condition condition);

  LocalWorld& world_;
  std::vector<Member> members_;
  std::vector<Box> boxes_;
  std::map<Channel, std::deque<Message>> messages_;
  int arrived_ = 0;
  std::uint64_t barriers_ = 0;
  int joined_ = 0;
  int left_ = 0;
  std::uint64_t departures_ = 0;
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
