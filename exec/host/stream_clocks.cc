// SPDX-License-Identifier: Apache-2.0
#include "exec/host/stream_clocks.h"

#include <algorithm>
#include <ctime>

#include "sim/core/base/check.h"

namespace shardwright::exec {
namespace {

/// Of the processor that this thread has used.
Nanoseconds processor_time_ns() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<Nanoseconds>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

}  // namespace

void StreamClocks::Processors::acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [this] { return free_ > 0; });
  --free_;
}

void StreamClocks::Processors::release() {
  {
    const std::lock_guard lock(mutex_);
    ++free_;
  }
  released_.notify_one();
}

Nanoseconds StreamClocks::latest() const {
  Nanoseconds latest = 0;
  for (const Nanoseconds now : now_ns_) latest = std::max(latest, now);
  return latest;
}

void StreamClocks::wait_until(StreamId stream, Nanoseconds at) {
  Nanoseconds& now = now_ns_[index(stream)];
  now = std::max(now, at);
}

void StreamClocks::wait_for_all(Nanoseconds at) {
  std::fill(now_ns_.begin(), now_ns_.end(), std::max(at, latest()));
}

Nanoseconds StreamClocks::end_of_operation(StreamId stream) const {
  return now(stream) + said_ns_.value_or(0);
}

StreamClocks::Timer::Timer(StreamClocks& clocks, StreamId stream)
    : clocks_(clocks), stream_(stream) {
  clocks_.processors_.acquire();
  begin_ns_ = processor_time_ns();
}

StreamClocks::Timer::~Timer() {
  clocks_.now_ns_[index(stream_)] += processor_time_ns() - begin_ns_;
  clocks_.processors_.release();
}

StreamClocks::Said::Said(StreamClocks* clocks, StreamId stream, std::optional<Nanoseconds> lasts)
    : clocks_(lasts ? clocks : nullptr), stream_(stream), lasts_(lasts.value_or(0)) {
  if (clocks_ == nullptr) return;
  SHARDWRIGHT_CHECK(!clocks_->said_ns_, "an operation of stream {} within another one", stream);
  clocks_->said_ns_ = lasts_;
}

StreamClocks::Said::~Said() {
  if (clocks_ == nullptr) return;
  clocks_->said_ns_.reset();
  clocks_->now_ns_[index(stream_)] += lasts_;
}

}  // namespace shardwright::exec
