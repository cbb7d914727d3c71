// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/worker_pool.h"

#include <algorithm>
#include <system_error>

namespace shardwright {

WorkerPool::WorkerPool(int threads) {
  const std::size_t wanted = threads > 0 ? static_cast<std::size_t>(threads)
                                         : std::max(1U, std::thread::hardware_concurrency());
  threads_.reserve(wanted - 1);
  try {
    for (std::size_t worker = 1; worker < wanted; ++worker) {
      threads_.emplace_back([this, worker] { wait_for_work(worker); });
    }
  } catch (const std::system_error&) {
    // Fewer do the same work.
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(std::size_t count, const std::function<void(std::size_t, std::size_t)>& work,
                     std::size_t chunk) {
  if (count == 0) return;
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    chunk_ = chunk;
    next_ = 0;
    failure_ = nullptr;
    busy_ = threads_.size();
    ++round_;
  }
  wake_.notify_all();
  take_items(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void WorkerPool::take_items(std::size_t worker) {
  while (true) {
    const std::size_t begin = next_.fetch_add(chunk_);
    if (begin >= count_) return;
    for (std::size_t item = begin; item < std::min(begin + chunk_, count_); ++item) {
      try {
        (*work_)(worker, item);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        next_ = count_;
        return;
      }
    }
  }
}

void WorkerPool::wait_for_work(std::size_t worker) {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ends_ || round_ != seen; });
    if (ends_) return;
    seen = round_;
    lock.unlock();
    take_items(worker);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace shardwright
