// SPDX-License-Identifier: Apache-2.0
#include "exec/host/host_stream.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "sim/core/base/check.h"

namespace shardwright::exec {

std::uint64_t HostEvent::issue() {
  const std::lock_guard lock(mutex_);
  open_.push_back(++issued_);
  return issued_;
}

bool HostEvent::is_complete(std::uint64_t number) const {
  return std::find(open_.begin(), open_.end(), number) == open_.end();
}

void HostEvent::complete(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase(open_, number);
  // Under the lock, because a waiter may destroy the event as soon as it knows.
  changed_.notify_all();
}

bool HostEvent::has_passed() const {
  const std::lock_guard lock(mutex_);
  return is_complete(issued_);
}

void HostEvent::await(std::uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_complete(number); });
}

HostStream::HostStream(std::string name, Failure& failure, const kernels::RandomStream* delays)
    : name_(std::move(name)), failure_(failure), delays_(delays != nullptr) {
  if (delays != nullptr) random_ = *delays;
  thread_ = std::thread([this] { work(); });
}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void HostStream::push(std::function<void()> task, std::int64_t operation) {
  enqueue({std::move(task), false, operation});
}

void HostStream::push_always(std::function<void()> task) {
  enqueue({std::move(task), true, -1});
}

void HostStream::enqueue(Task task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void HostStream::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void HostStream::pause() {
  const std::uint32_t draw = random_.word(tasks_done_++);
  // Mostly none, sometimes long enough for another stream to run ahead by many tasks.
  const std::uint32_t microseconds = draw % 4 == 0 ? (draw >> 8) % 200 : 0;
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void HostStream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (delays_) pause();
    if (task.always || !failure_.failed()) {
      try {
        task.run();
      } catch (...) {
        failure_.keep(std::current_exception(), task.operation);
      }
    }
    task.run = nullptr;
    lock.lock();
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

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
