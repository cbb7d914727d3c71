// SPDX-License-Identifier: Apache-2.0
// Virtual clocks of a rank's streams: on a few cores, the times of a machine with a processor for
// every stream.
//
// An operation begins when its stream has done what came before and what it waits for, and lasts
// what its thread used of a processor, or what it is said to last: messages and collectives, which
// take what a network takes and not what copies in memory do. What a step does beside the
// operations of its schedule, such as the batch's arrival, takes no time. Operations run when they
// are issued (StreamMode::kInline), in one of the orders that a schedule allows, and no decision
// depends on a clock; so the times are of the arithmetic that ran, only the waiting is not spent.
//
// Clocks only move forward: an event that was recorded in an earlier step has long passed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "exec/device.h"
#include "sim/core/units.h"

namespace shardwright::exec {

class StreamClocks {
 public:
  /// Ranks of one process share `processors`: no more operations are timed at once than there are,
  /// because switching between threads would disturb them. Must outlive the clocks.
  /// Not a std::counting_semaphore: that of libstdc++ 12 may sleep on when it is released (GCC bug
  /// 104928).
  class Processors {
   public:
    explicit Processors(int count) : free_(count) {}
    void acquire();
    void release();

   private:
    std::mutex mutex_;
    std::condition_variable released_;
    int free_;
  };
  explicit StreamClocks(Processors& processors) : processors_(processors) {}

  void add_stream() { now_ns_.push_back(latest()); }
  Nanoseconds now(StreamId stream) const { return now_ns_[index(stream)]; }
  /// Of all streams.
  Nanoseconds latest() const;
  void wait_until(StreamId stream, Nanoseconds at);
  /// The host has waited for all streams, and for others until `at`: nothing begins before.
  void wait_for_all(Nanoseconds at = 0);

  /// Runs an operation of the stream on this thread and lets its clock tell how long that took.
  template <class Operation>
  void run(StreamId stream, const Operation& operation) {
    if (said_ns_) return operation();
    const Timer timer(*this, stream);
    operation();
  }

  /// While it lives what runs takes no time; at its end `lasts` has passed since the stream began
  /// it, behind everything that it waited for meanwhile.
  class Said {
   public:
    Said(StreamClocks* clocks, StreamId stream, std::optional<Nanoseconds> lasts);
    ~Said();
    Said(const Said&) = delete;
    Said& operator=(const Said&) = delete;

   private:
    StreamClocks* clocks_;  // null: nothing is said
    StreamId stream_;
    Nanoseconds lasts_;
  };
  /// When what the stream does now will be done.
  Nanoseconds end_of_operation(StreamId stream) const;

 private:
  /// Moves the stream's clock by the processor time that passes while it lives.
  class Timer {
   public:
    Timer(StreamClocks& clocks, StreamId stream);
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    StreamClocks& clocks_;
    StreamId stream_;
    Nanoseconds begin_ns_;
  };
  static std::size_t index(StreamId stream) { return static_cast<std::size_t>(stream); }

  Processors& processors_;
  std::vector<Nanoseconds> now_ns_;
  std::optional<Nanoseconds> said_ns_;  // of the operation in progress
};

}  // namespace shardwright::exec
