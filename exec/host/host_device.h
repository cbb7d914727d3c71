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
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "exec/device.h"
#include "exec/host/host_stream.h"
#include "kernels/host/parallel.h"

namespace shardwright::exec {

enum class StreamMode { kInline, kThreads, kShuffled };

std::string_view name_of(StreamMode mode);
/// Throws Error naming the word and what is accepted.
StreamMode stream_mode_from(std::string_view name);

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
