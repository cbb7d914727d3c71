// SPDX-License-Identifier: Apache-2.0
#include "exec/host/host_device.h"

#include <fmt/core.h>

#include <chrono>
#include <new>
#include <utility>

#include "exec/host_memory.h"
#include "sim/core/arena.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

std::string_view name_of(StreamMode mode) {
  switch (mode) {
    case StreamMode::kInline:
      return "inline";
    case StreamMode::kThreads:
      return "threads";
    case StreamMode::kShuffled:
      return "shuffled";
  }
  return "?";
}

StreamMode stream_mode_from(std::string_view name) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads, StreamMode::kShuffled}) {
    if (name == name_of(mode)) return mode;
  }
  throw Error(fmt::format("streams is '{}', expected threads, inline or shuffled", name));
}

class HostDevice::HostAllocation final : public Allocation {
 public:
  HostAllocation(HostDevice& device, Bytes bytes)
      : device_(device),
        bytes_(bytes),
        data_(::operator new(static_cast<std::size_t>(bytes), kAlignment)) {
    const Bytes now = device_.allocated_.fetch_add(bytes) + bytes;
    Bytes peak = device_.peak_.load();
    while (peak < now && !device_.peak_.compare_exchange_weak(peak, now)) {
    }
  }
  ~HostAllocation() override {
    ::operator delete(data_, kAlignment);
    device_.allocated_.fetch_sub(bytes_);
  }
  void* data() const override { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{kArenaAlignment};
  HostDevice& device_;
  Bytes bytes_;
  void* data_;
};

HostDevice::HostDevice(kernels::host::Parallel& parallel, StreamMode mode,
                       std::uint64_t shuffle_seed)
    : parallel_(parallel), mode_(mode), shuffle_seed_(shuffle_seed) {}

HostDevice::HostDevice(kernels::host::Parallel& parallel, StreamClocks::Processors& processors)
    : parallel_(parallel), mode_(StreamMode::kInline) {
  SHARDWRIGHT_CHECK(parallel.threads() == 1, "clocks of {} threads", parallel.threads());
  clocks_.emplace(processors);
}

HostDevice::~HostDevice() {
  drain();
}

std::unique_ptr<Allocation> HostDevice::allocate(Bytes bytes) {
  try {
    return std::make_unique<HostAllocation>(*this, bytes);
  } catch (const std::bad_alloc&) {
    throw Error(
        fmt::format("the plan needs {} bytes of memory at once and the machine refuses them",
                    bytes),
        ExitCode::kFailed);
  }
}

std::unique_ptr<Allocation> HostDevice::allocate_host(Bytes bytes) {
  return pageable_memory(bytes);
}

StreamId HostDevice::make_stream(const char* name, int) {
  const auto id = static_cast<StreamId>(streams_.size());
  if (mode_ == StreamMode::kInline) {
    streams_.push_back(nullptr);
    if (clocks_) clocks_->add_stream();
    return id;
  }
  const kernels::RandomStream delays{shuffle_seed_, kernels::RandomSite::kDelay,
                                     static_cast<std::uint32_t>(id)};
  streams_.push_back(std::make_unique<HostStream>(
      name, failure_, mode_ == StreamMode::kShuffled ? &delays : nullptr));
  return id;
}

std::unique_ptr<Event> HostDevice::make_event() {
  return std::make_unique<HostEvent>();
}

void HostDevice::record(StreamId stream, Event& event) {
  auto& mine = static_cast<HostEvent&>(event);
  if (clocks_) mine.at_ns = clocks_->now(stream);
  if (mode_ == StreamMode::kInline) return;
  streams_[static_cast<std::size_t>(stream)]->push_always(
      [&mine, number = mine.issue()] { mine.complete(number); });
}

void HostDevice::wait(StreamId stream, const Event& event) {
  const auto& theirs = static_cast<const HostEvent&>(event);
  if (clocks_) clocks_->wait_until(stream, theirs.at_ns);
  if (mode_ == StreamMode::kInline) return;
  if (theirs.issued() == 0) return;
  streams_[static_cast<std::size_t>(stream)]->push_always(
      [&theirs, number = theirs.issued()] { theirs.await(number); });
}

void HostDevice::synchronize() {
  drain();
  if (clocks_) clocks_->wait_for_all();
  failure_.rethrow();
}

void HostDevice::drain() noexcept {
  // A stream may wait for another one of this device but gets no new work meanwhile, so one round
  // is enough.
  for (const auto& stream : streams_) {
    if (stream) stream->drain();
  }
}

void HostDevice::timestamp(StreamId stream, Nanoseconds* at) {
  if (clocks_) {
    *at = clocks_->now(stream);
    return;
  }
  enqueue(stream, [at] {
    *at = std::chrono::duration_cast<std::chrono::nanoseconds>(
              std::chrono::steady_clock::now().time_since_epoch())
              .count();
  });
}

void HostDevice::call(StreamId stream, std::function<void()> function) {
  if (!clocks_) return enqueue(stream, std::move(function));
  // It takes no time: it may wait for another rank, which needs a processor meanwhile.
  run_now(function);
}

}  // namespace shardwright::exec
