// SPDX-License-Identifier: Apache-2.0
// The processor as a device: Eigen and vector kernels for the operations, threads as streams.
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

class HostDevice final : public Device {
 public:
  /// Ranks of one process share `parallel`, which must outlive the device.
  HostDevice(kernels::host::Parallel& parallel, StreamMode mode, std::uint64_t shuffle_seed = 0);
  ~HostDevice() override;

  std::unique_ptr<Allocation> allocate(Bytes bytes) override;
  Bytes allocated_bytes() const override { return allocated_.load(); }
  Bytes peak_allocated_bytes() const override { return peak_.load(); }

  StreamId make_stream(const char* name, int priority) override;
  std::unique_ptr<Event> make_event() override;
  void record(StreamId stream, Event& event) override;
  void wait(StreamId stream, const Event& event) override;
  void synchronize() override;
  void drain() noexcept override;
  void timestamp(StreamId stream, Nanoseconds* at) override;
  void call(StreamId stream, std::function<void()> function) override;

  void copy(StreamId stream, void* to, const void* from, Bytes bytes) override;
  void copy_rows(StreamId stream, Matrix from, Matrix to) override;
  void zero(StreamId stream, void* data, Bytes bytes) override;
  void poison(StreamId stream, void* data, Bytes bytes, DType dtype) override;

  void cast(StreamId stream, Array from, Array to) override;
  void accumulate(StreamId stream, Array in, Array sum) override;
  void fold(StreamId stream, std::span<const void* const> inputs, DType input_dtype, Array out,
            bool adds) override;

  void embedding_forward(StreamId stream, Matrix table, const std::int32_t* tokens,
                         Matrix out) override;
  void embedding_backward(StreamId stream, const std::int32_t* tokens, Matrix d_out, Matrix d_table,
                          bool adds, void* scratch) override;
  void norm_forward(StreamId stream, Heads x, const void* weight, double eps, Heads y,
                    float* rstd) override;
  void norm_backward(StreamId stream, Heads x, const void* weight, const float* rstd, Heads d_y,
                     const void* d_residual, Heads d_x, Array d_weight, float* scratch) override;
  void linear_forward(StreamId stream, Matrix x, Matrix w, const Addends& addends,
                      Matrix y) override;
  void linear_input_gradient(StreamId stream, Matrix d_y, Matrix w, Matrix d_x) override;
  void linear_weight_gradient(StreamId stream, Matrix d_y, Matrix x, Matrix d_w,
                              bool adds) override;
  void bias_gradient(StreamId stream, Matrix d_y, Array d_bias, float* scratch) override;
  void rope(StreamId stream, PackedHeads heads, RopeTables tables, const std::int32_t* positions,
            bool backward) override;
  void attention_forward(StreamId stream, PackedHeads heads, const std::int32_t* first_key,
                         Matrix out, float* statistics) override;
  void attention_backward(StreamId stream, PackedHeads heads, const std::int32_t* first_key,
                          Matrix out, const float* statistics, Matrix d_out, PackedHeads d_heads,
                          void* workspace, Bytes workspace_bytes) override;
  void activation_forward(StreamId stream, Activation activation, Matrix in, Matrix out) override;
  void activation_backward(StreamId stream, Activation activation, Matrix in, Matrix d_out,
                           Matrix d_in) override;
  DType logits_dtype(DType) const override { return DType::kFp32; }
  void cross_entropy(StreamId stream, Matrix logits, const std::int32_t* targets, bool gradient,
                     LossSums* sums, double* scratch) override;

  void sum_of_squares(StreamId stream, Array x, std::int64_t* words) override;
  void finish_gradients(StreamId stream, const StepRecords& records, const ClipOptions& options,
                        StepTotals* totals) override;
  void adamw(StreamId stream, const kernels::AdamW& options, const StepTotals* totals,
             std::span<const UpdateSegment> segments, Array gradient, Array parameter,
             Array first_moment, Array second_moment) override;

 private:
  class HostAllocation;

  /// Runs `operation` now or hands it to the stream.
  template <class Operation>
  void enqueue(StreamId stream, Operation operation) {
    if (mode_ == StreamMode::kInline) {
      operation();
    } else {
      streams_[static_cast<std::size_t>(stream)]->push(std::move(operation));
    }
  }

  kernels::host::Parallel& parallel_;
  StreamMode mode_;
  std::uint64_t shuffle_seed_;
  std::atomic<Bytes> allocated_{0};
  std::atomic<Bytes> peak_{0};
  Failure failure_;
  std::vector<std::unique_ptr<HostStream>> streams_;  // null in kInline
};

}  // namespace shardwright::exec
