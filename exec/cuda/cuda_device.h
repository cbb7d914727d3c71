// SPDX-License-Identifier: Apache-2.0
// A GPU as a device: kernels of kernels/cuda, products by cuBLASLt, attention by the fastest
// implementation that takes the problem.
//
// What is enqueued becomes CUDA calls at once; the host never waits inside a step. Device memory is
// only what the executor allocates before the first step: libraries work in scratch that it lends.
// Small host memory on either side of a copy goes through pinned staging; numbers that come back
// are delivered by synchronize(). Tables that operations take are kernel parameters.
//
// Several devices of one process may be the same GPU (ranks that are threads) or different ones
// that read each other's memory. A device belongs to the thread that made it.
//
// An operation that CUDA refuses, or a function of the host that throws, makes the device fail as
// exec/device.h says; what was already enqueued still runs, because a GPU's queue cannot be taken
// back. A kernel that fails while it runs ends the whole process's use of the GPU: all ranks see
// it at their next synchronize().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/cuda/attention.h"
#include "exec/cuda/handles.h"
#include "exec/cuda/products.h"
#include "exec/device.h"

namespace shardwright::exec {

struct CudaDeviceOptions {
  int gpu = 0;                     // by the runtime's count
  std::string attention = "auto";  // an implementation by name
  bool deterministic = false;      // the plan's: attention repeats to the bit
  std::vector<int> peers;          // GPUs whose memory this one's kernels read
  /// How many collectives, and passes of layers, the host may be ahead of each stream of the GPU.
  int run_ahead = 8;
};

class CudaDevice final : public Device {
 public:
  /// Throws Error when the GPU cannot be used.
  explicit CudaDevice(const CudaDeviceOptions& options = {});
  ~CudaDevice() override;

  std::unique_ptr<Allocation> allocate(Bytes bytes) override;
  std::unique_ptr<Allocation> allocate_by(const Allocator& allocator, Bytes bytes) override;
  /// Throws Error when less than that is free: to be asked before a plan is built on the device.
  void require_free(Bytes planned) const;
  /// Pinned, or pageable where the system lets no more be pinned.
  std::unique_ptr<Allocation> allocate_host(Bytes bytes) override;
  /// Always pinned: copies of other memory wait for the host.
  std::unique_ptr<Allocation> allocate_shared(Bytes bytes) override;
  Bytes allocated_bytes() const override { return allocated_; }
  Bytes peak_allocated_bytes() const override { return peak_; }

  StreamId make_stream(const char* name, int priority) override;
  std::unique_ptr<Event> make_event() override;
  void record(StreamId stream, Event& event) override;
  void wait(StreamId stream, const Event& event) override;
  void synchronize() override;
  bool shares_host_memory() const override { return false; }
  void drain() noexcept override;
  void timestamp(StreamId stream, Nanoseconds* at) override;
  void call(StreamId stream, std::function<void()> function) override;
  void limit_run_ahead(StreamId stream) override;
  void leave_multiprocessors(int count) override;
  void lend_scratch(StreamId stream, void* data, Bytes bytes) override;

  /// Products take operands of one type.
  DType logits_dtype(DType parameters) const override { return parameters; }
#include "exec/device_operations.inc"

  bool multiplies_turned(kernels::Fp8Scaling scaling) const override;
  std::vector<std::int64_t> document_bounds(std::int64_t batch) const override;
  /// For communicators that enqueue work of their own.
  cudaStream_t stream(StreamId id) const {
    return streams_[static_cast<std::size_t>(id)].handle.get();
  }
  /// All of them by name, in the order in which they were made.
  std::vector<std::pair<std::string, cudaStream_t>> named_streams() const;
  /// Which attention serves these heads, packed side by side, from now on. May take a second, and
  /// loads kernels: to be asked before the first step. Throws Error when none does.
  cuda::AttentionChoice choose_attention(const kernels::AttentionShape& shape, DType dtype,
                                         bool documents);
  /// For those who choose the algorithms of products.
  cuda::Products& products() {
    return products_;
  }

 private:
  class CudaAllocation;
  class PinnedAllocation;
  class CudaEvent;
  /// Makes a GPU the thread's current one. What CUDA and its libraries make afterwards is that
  /// GPU's, so this stands before every member that makes something.
  struct CurrentGpu {
    explicit CurrentGpu(int gpu);
  };
  struct Stream {
    std::string name;
    cuda::StreamHandle handle;
    void* scratch = nullptr;
    Bytes scratch_bytes = 0;
    std::vector<cuda::EventHandle> passed;  // ring of limit_run_ahead
    std::size_t passes = 0;
  };
  struct Delivery {
    void* to;
    const void* from;  // staged
    std::size_t bytes;
  };
  struct ChosenAttention {
    kernels::cuda::AttentionProblem problem;
    cuda::AttentionChoice choice;
  };
  struct Timestamp {
    Nanoseconds* at;
    std::size_t event;  // in timing_events_
  };

  /// Does what enqueues work unless the device has failed; keeps the failure.
  template <class Issue>
  void enqueue(Issue&& issue) {
    if (failure_.failed()) return;
    always([&] { issue(); });
  }
  /// The same also after a failure.
  template <class Issue>
  void always(Issue&& issue) noexcept {
    try {
      issue();
    } catch (...) {
      failure_.keep(std::current_exception());
    }
  }
  Stream& at(StreamId stream) {
    return streams_[static_cast<std::size_t>(stream)];
  }
  void product(StreamId stream, cuda::ProductForm form, Matrix a, Matrix b, Matrix out,
               const Addends& addends = {});
  /// Chosen when a problem is first met, and kept.
  const cuda::AttentionChoice& attention_for(const kernels::cuda::AttentionProblem& problem);
  kernels::cuda::AttentionProblem problem_of(const kernels::AttentionShape& shape, DType dtype,
                                             std::int64_t packed_stride, std::int64_t out_stride,
                                             const PackedDocuments& documents) const;
  /// Room in the staging memory, or null when it is used up until the next synchronize().
  void* stage(std::size_t bytes);
  bool is_pageable(const void* data) const;
  void resolve_timestamps();

  CudaDeviceOptions options_;
  CurrentGpu current_gpu_;
  int multiprocessors_ = 0;
  int compute_major_ = 0;
  Bytes allocated_ = 0;
  Bytes peak_ = 0;
  Failure failure_;
  std::vector<Stream> streams_;
  cuda::Products products_;
  cuda::AttentionSet attention_;
  std::vector<ChosenAttention> chosen_attention_;
  cuda::PinnedMemory staging_;
  std::size_t staged_bytes_ = 0;
  std::vector<Delivery> deliveries_;
  std::vector<std::unique_ptr<std::function<void()>>> host_functions_;  // until they have run
  std::vector<cuda::EventHandle> timing_events_;
  std::vector<Timestamp> timestamps_;
};

}  // namespace shardwright::exec
