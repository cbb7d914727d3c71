// SPDX-License-Identifier: Apache-2.0
// A group of local ranks: the table of what they published, barriers, and letter boxes for pairs.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/comm/local_world.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
