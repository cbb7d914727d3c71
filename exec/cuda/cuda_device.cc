// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/cuda_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "exec/host_memory.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::exec {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingAlignment = 64;
/// Readings of both clocks; the quickest one counts.
constexpr int kClockReadings = 5;

Nanoseconds host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Lets kernels of this GPU read the memory of others.
void enable_peer_access(int gpu, const std::vector<int>& peers) {
  for (const int peer : peers) {
    int can = 0;
    if (peer == gpu) continue;
    SHARDWRIGHT_CUDA(cudaDeviceCanAccessPeer(&can, gpu, peer));
    if (can == 0) {
      throw Error(fmt::format("GPU {} cannot read the memory of GPU {}, expected ranks that NCCL "
                              "connects (--communicator nccl) or that share one GPU "
                              "(CUDA_VISIBLE_DEVICES=0)",
                              gpu, peer),
                  ExitCode::kMissingDevice);
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      SHARDWRIGHT_CUDA(status);
    }
  }
}

}  // namespace

class CudaDevice::CudaAllocation final : public Allocation {
 public:
  CudaAllocation(CudaDevice& device, Bytes bytes) : device_(device), bytes_(bytes) {
    SHARDWRIGHT_CUDA(cudaMalloc(&data_, static_cast<std::size_t>(bytes)));
    device_.allocated_ += bytes;
    device_.peak_ = std::max(device_.peak_, device_.allocated_);
  }
  ~CudaAllocation() override {
    cudaFree(data_);
    device_.allocated_ -= bytes_;
  }
  void* data() const override { return data_; }

 private:
  CudaDevice& device_;
  Bytes bytes_;
  void* data_ = nullptr;
};

class CudaDevice::CudaEvent final : public Event {
 public:
  cudaEvent_t handle() const { return handle_.get(); }
  bool has_passed() const override { return cudaEventQuery(handle_.get()) == cudaSuccess; }

 private:
  cuda::EventHandle handle_ = cuda::make_event_handle(cuda::EventUse::kOrder);
};

class CudaDevice::PinnedAllocation final : public Allocation {
 public:
  explicit PinnedAllocation(cuda::PinnedMemory memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_.get(); }

 private:
  cuda::PinnedMemory memory_;
};

CudaDevice::CurrentGpu::CurrentGpu(int gpu) {
  SHARDWRIGHT_CUDA(cudaSetDevice(gpu));
}

CudaDevice::CudaDevice(const CudaDeviceOptions& options)
    : options_(options), current_gpu_(options.gpu) {
  cudaDeviceProp properties{};
  SHARDWRIGHT_CUDA(cudaGetDeviceProperties(&properties, options_.gpu));
  compute_major_ = properties.major;
  enable_peer_access(options_.gpu, options_.peers);
  staging_ = cuda::allocate_pinned(kStagingBytes);
}

CudaDevice::~CudaDevice() {
  drain();
}

std::unique_ptr<Allocation> CudaDevice::allocate(Bytes bytes) {
  try {
    return std::make_unique<CudaAllocation>(*this, bytes);
  } catch (const Error& error) {
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) throw;
    throw Error(fmt::format("the plan needs {} bytes of GPU memory at once and {} of {} are free: "
                            "{}",
                            bytes, free, total, error.what()),
                ExitCode::kFailed);
  }
}

void CudaDevice::require_free(Bytes planned) const {
  std::size_t free = 0, total = 0;
  SHARDWRIGHT_CUDA(cudaMemGetInfo(&free, &total));
  if (static_cast<std::size_t>(planned) <= free) return;
  throw Error(fmt::format("GPU {} has {:.2f} GiB of {:.2f} free, but a rank of this plan needs "
                          "{:.2f}; expected a plan for less (shardwright tune), or that whatever "
                          "else uses the GPU ends",
                          options_.gpu, static_cast<double>(free) / kGiB,
                          static_cast<double>(total) / kGiB, static_cast<double>(planned) / kGiB),
              ExitCode::kInfeasible);
}

std::unique_ptr<Allocation> CudaDevice::allocate_host(Bytes bytes) {
  void* data = nullptr;
  if (cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();  // it is answered here
    return pageable_memory(bytes);
  }
  return std::make_unique<PinnedAllocation>(cuda::PinnedMemory(data));
}

std::unique_ptr<Allocation> CudaDevice::allocate_shared(Bytes bytes) {
  return std::make_unique<PinnedAllocation>(cuda::allocate_pinned(static_cast<std::size_t>(bytes)));
}

StreamId CudaDevice::make_stream(const char* name, int priority) {
  streams_.push_back({name, cuda::make_stream_handle(priority), nullptr, 0, {}, 0});
  return static_cast<StreamId>(streams_.size()) - 1;
}

std::vector<std::pair<std::string, cudaStream_t>> CudaDevice::named_streams() const {
  std::vector<std::pair<std::string, cudaStream_t>> all;
  for (const Stream& one : streams_) all.emplace_back(one.name, one.handle.get());
  return all;
}

std::unique_ptr<Event> CudaDevice::make_event() {
  return std::make_unique<CudaEvent>();
}

void CudaDevice::record(StreamId stream, Event& event) {
  always([&] {
    SHARDWRIGHT_CUDA(
        cudaEventRecord(static_cast<CudaEvent&>(event).handle(), this->stream(stream)));
  });
}

void CudaDevice::wait(StreamId stream, const Event& event) {
  always([&] {
    SHARDWRIGHT_CUDA(cudaStreamWaitEvent(this->stream(stream),
                                         static_cast<const CudaEvent&>(event).handle(), 0));
  });
}

void CudaDevice::synchronize() {
  drain();
  if (!failure_.failed()) {
    for (const Delivery& delivery : deliveries_) {
      std::memcpy(delivery.to, delivery.from, delivery.bytes);
    }
    always([&] { resolve_timestamps(); });
  }
  deliveries_.clear();
  timestamps_.clear();
  host_functions_.clear();
  staged_bytes_ = 0;
  failure_.rethrow();
}

void CudaDevice::drain() noexcept {
  for (const Stream& one : streams_) {
    always([&] { SHARDWRIGHT_CUDA(cudaStreamSynchronize(one.handle.get())); });
  }
}

void CudaDevice::timestamp(StreamId stream, Nanoseconds* at) {
  enqueue([&] {
    const std::size_t event = timestamps_.size();
    if (event == timing_events_.size()) {
      timing_events_.push_back(cuda::make_event_handle(cuda::EventUse::kTime));
    }
    SHARDWRIGHT_CUDA(cudaEventRecord(timing_events_[event].get(), this->stream(stream)));
    timestamps_.push_back({at, event});
  });
}

void CudaDevice::resolve_timestamps() {
  if (timestamps_.empty()) return;
  // Both clocks are read at once, as nearly as that goes, while the GPU is idle.
  cuda::EventHandle anchor;
  Nanoseconds anchor_ns = 0, shortest = 0;
  for (int i = 0; i < kClockReadings; ++i) {
    cuda::EventHandle reading = cuda::make_event_handle(cuda::EventUse::kTime);
    const Nanoseconds begin = host_now();
    SHARDWRIGHT_CUDA(cudaEventRecord(reading.get(), streams_.front().handle.get()));
    SHARDWRIGHT_CUDA(cudaEventSynchronize(reading.get()));
    const Nanoseconds took = host_now() - begin;
    if (anchor != nullptr && took >= shortest) continue;
    anchor = std::move(reading);
    anchor_ns = begin + took / 2;
    shortest = took;
  }
  for (const Timestamp& stamp : timestamps_) {
    float milliseconds = 0;
    SHARDWRIGHT_CUDA(
        cudaEventElapsedTime(&milliseconds, timing_events_[stamp.event].get(), anchor.get()));
    *stamp.at = anchor_ns - std::llround(static_cast<double>(milliseconds) * 1e6);
  }
}

void CudaDevice::call(StreamId stream, std::function<void()> function) {
  enqueue([&] {
    host_functions_.push_back(std::make_unique<std::function<void()>>(
        [this, body = std::move(function)] { enqueue([&] { body(); }); }));
    const cudaHostFn_t run = [](void* body) { (*static_cast<std::function<void()>*>(body))(); };
    SHARDWRIGHT_CUDA(cudaLaunchHostFunc(this->stream(stream), run, host_functions_.back().get()));
  });
}

void CudaDevice::limit_run_ahead(StreamId stream) {
  enqueue([&] {
    Stream& s = at(stream);
    const auto ring = static_cast<std::size_t>(options_.run_ahead);
    if (s.passed.size() < ring) {
      s.passed.push_back(cuda::make_event_handle(cuda::EventUse::kOrder));
    } else {
      SHARDWRIGHT_CUDA(cudaEventSynchronize(s.passed[s.passes % ring].get()));
    }
    SHARDWRIGHT_CUDA(cudaEventRecord(s.passed[s.passes % ring].get(), s.handle.get()));
    ++s.passes;
  });
}

void CudaDevice::lend_scratch(StreamId stream, void* data, Bytes bytes) {
  at(stream).scratch = data;
  at(stream).scratch_bytes = bytes;
}

void* CudaDevice::stage(std::size_t bytes) {
  const auto begin = static_cast<std::size_t>(
      round_up(static_cast<Bytes>(staged_bytes_), static_cast<Bytes>(kStagingAlignment)));
  if (begin + bytes > kStagingBytes) return nullptr;
  staged_bytes_ = begin + bytes;
  return static_cast<std::byte*>(staging_.get()) + begin;
}

bool CudaDevice::is_pageable(const void* data) const {
  cudaPointerAttributes attributes{};
  SHARDWRIGHT_CUDA(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeUnregistered;
}

void CudaDevice::copy(StreamId stream, void* to, const void* from, Bytes bytes) {
  if (bytes == 0) return;
  enqueue([&] {
    const auto size = static_cast<std::size_t>(bytes);
    const bool from_host = is_pageable(from), to_host = is_pageable(to);
    if (void* staged = from_host != to_host ? stage(size) : nullptr) {
      if (from_host) {
        std::memcpy(staged, from, size);
        from = staged;
      } else {
        deliveries_.push_back({to, staged, size});
        to = staged;
      }
    }
    SHARDWRIGHT_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, this->stream(stream)));
  });
}

}  // namespace shardwright::exec
