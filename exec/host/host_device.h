// SPDX-License-Identifier: Apache-2.0
// The processor as a device: vector kernels for the operations, threads as streams.
//
// Modes of its streams:
//   kThreads   every stream is a FIFO worker thread; what a schedule does not order runs in any
//   order kInline    operations run when they are enqueued, on the caller's thread: the order in
//   which a
//              schedule is issued is always one of the allowed orders, and the fastest on few cores
//   kShuffled  as kThreads, with seeded random pauses before operations
// Results are the same bits in every mode and for any number of threads of `parallel`.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "exec/device.h"
#include "kernels/host/parallel.h"
#include "kernels/random.h"
#include "sim/core/units.h"

namespace shardwright::exec {

// A stream of the host device: a FIFO of tasks with a thread of its own. And its events.
//
// Tasks of one stream run one after the other; nothing else is promised, so an order that a
// schedule forgot to ask for is a data race that ThreadSanitizer can see. Task failures belong to
// the device: after the first one kernels are skipped while events still complete, so that streams
// that wait for this one are never left hanging.

/// Records are numbered by the host and completed by their streams, in any order where they are of
/// several: who waits for one is not served by a later one of another stream.
class HostEvent final : public Event {
 public:
  /// The number of the record to come; host only.
  std::uint64_t issue();
  /// The number of the last record; host only.
  std::uint64_t issued() const { return issued_; }
  void complete(std::uint64_t number);
  void await(std::uint64_t number) const;
  bool has_passed() const override;

  Nanoseconds at_ns = 0;  // of its last record, where streams have clocks

 private:
  bool is_complete(std::uint64_t number) const;

  std::uint64_t issued_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::uint64_t> open_;  // records that are not complete; few
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

enum class StreamMode { kInline, kThreads, kShuffled };

std::string_view name_of(StreamMode mode);
/// Throws Error naming the word and what is accepted.
StreamMode stream_mode_from(std::string_view name);

/// As Device::fold, on this thread and those of `parallel`.
void fold_now(kernels::host::Parallel& parallel, const std::vector<const void*>& inputs,
              DType input_dtype, const Array& out, bool adds, SumOrder order);

class HostDevice : public Device {
 public:
  /// Ranks of one process share `parallel`, which must outlive the device.
  HostDevice(kernels::host::Parallel& parallel, StreamMode mode, std::uint64_t shuffle_seed = 0);
  /// With inline streams that have virtual clocks. `parallel` is this rank's alone and computes on
  /// the thread that calls it.
  HostDevice(kernels::host::Parallel& parallel, StreamClocks::Processors& processors);
  ~HostDevice() override;

  std::unique_ptr<Allocation> allocate(Bytes bytes) override;
  std::unique_ptr<Allocation> allocate_by(const Allocator& allocator, Bytes bytes) override;
  std::unique_ptr<Allocation> allocate_host(Bytes bytes) override;
  Bytes allocated_bytes() const override { return allocated_.load(); }
  Bytes peak_allocated_bytes() const override { return peak_.load(); }

  StreamId make_stream(const char* name, int priority) override;
  std::unique_ptr<Event> make_event() override;
  void record(StreamId stream, Event& event) override;
  void wait(StreamId stream, const Event& event) override;
  void synchronize() override;
  bool has_failed() const override { return failure_.failed(); }
  void begin_operation(std::int64_t number) override { operation_ = number; }
  std::int64_t failed_operation() const override { return failure_.operation(); }
  bool runs_inline() const override { return mode_ == StreamMode::kInline; }
  void drain() noexcept override;
  StreamClocks* clocks() override { return clocks_ ? &*clocks_ : nullptr; }
  void timestamp(StreamId stream, Nanoseconds* at) override;
  void call(StreamId stream, std::function<void()> function) override;

  DType logits_dtype(DType) const override { return DType::kFp32; }
#include "exec/device_operations.inc"

 private:
  class HostAllocation;

  /// Runs `operation` now or hands it to the stream.
  template <class Operation>
  void enqueue(StreamId stream, Operation operation) {
    if (mode_ != StreamMode::kInline) {
      streams_[static_cast<std::size_t>(stream)]->push(std::move(operation), operation_);
    } else if (clocks_) {
      run_now([&] { clocks_->run(stream, operation); });
    } else {
      run_now(operation);
    }
  }
  template <class Operation>
  void run_now(const Operation& operation) {
    if (failure_.failed()) return;
    try {
      operation();
    } catch (...) {
      failure_.keep(std::current_exception(), operation_);
    }
  }

  kernels::host::Parallel& parallel_;
  StreamMode mode_;
  std::uint64_t shuffle_seed_ = 0;
  std::optional<StreamClocks> clocks_;  // in kInline
  std::atomic<Bytes> allocated_{0};
  std::atomic<Bytes> peak_{0};
  Failure failure_;
  std::int64_t operation_ = -1;                       // that is enqueued
  std::vector<std::unique_ptr<HostStream>> streams_;  // null in kInline
};

}  // namespace shardwright::exec
