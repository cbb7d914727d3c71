// SPDX-License-Identifier: Apache-2.0
// A stream of the host device: a FIFO of tasks with a thread of its own. And its events.
//
// Tasks of one stream run one after the other; nothing else is promised, so an order that a
// schedule forgot to ask for is a data race that ThreadSanitizer can see. Task failures belong to
// the device: after the first one kernels are skipped while events still complete, so that streams
// that wait for this one are never left hanging.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "exec/device.h"
#include "exec/failure.h"
#include "kernels/random.h"

namespace shardwright::exec {

/// A counter of records: issued by the host, completed by the stream.
class HostEvent final : public Event {
 public:
  /// The number of the record to come; host only.
  std::uint64_t issue() { return ++issued_; }
  std::uint64_t issued() const { return issued_.load(); }
  void complete(std::uint64_t number);
  void await(std::uint64_t number) const;
  bool has_passed() const override;

  Nanoseconds at_ns = 0;  // of its last record, where streams have clocks

 private:
  std::atomic<std::uint64_t> issued_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t completed_ = 0;
};

class HostStream {
 public:
  /// With a delay seed every task is preceded by a random pause, so that streams overtake each
  /// other.
  HostStream(std::string name, Failure& failure, const kernels::RandomStream* delays);
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  /// Skipped after a failure of the device. Its own is told by the caller's `operation`.
  void push(std::function<void()> task, std::int64_t operation = -1);
  /// Never skipped, never fails.
  void push_always(std::function<void()> task);
  /// Blocks until everything that was pushed is done.
  void drain();

 private:
  struct Task {
    std::function<void()> run;
    bool always;
    std::int64_t operation;
  };
  void enqueue(Task task);
  void work();
  void pause();

  std::string name_;
  Failure& failure_;
  bool delays_ = false;
  kernels::RandomStream random_;
  std::uint64_t tasks_done_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<Task> queue_;  // guarded by mutex_
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace shardwright::exec
