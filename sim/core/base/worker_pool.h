// SPDX-License-Identifier: Apache-2.0
// Threads that share out the items of a loop. Which thread does which item is not fixed, so
// results must go to places that belong to items. A pool serves many short loops (the rounds of a
// search); for_each_index is one loop with threads of its own. The processor's kernels have a third
// kind (kernels/host/parallel.h), for reasons given there.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace shardwright {

class WorkerPool {
 public:
  /// 0 threads: one for each core.
  explicit WorkerPool(int threads = 0);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  std::size_t size() const { return threads_.size() + 1; }

  /// Calls work(worker, item) for every item in [0, count), `chunk` neighbours by one worker, and
  /// returns when all are done; worker is below size(). The first exception is thrown again.
  void run(std::size_t count, const std::function<void(std::size_t, std::size_t)>& work,
           std::size_t chunk = 1);

 private:
  void take_items(std::size_t worker);
  void wait_for_work(std::size_t worker);

  std::vector<std::thread> threads_;  // the caller of run() works too
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::size_t round_ = 0;
  std::size_t busy_ = 0;
  bool ends_ = false;
  const std::function<void(std::size_t, std::size_t)>* work_ = nullptr;
  std::size_t count_ = 0, chunk_ = 1;
  std::atomic<std::size_t> next_{0};
  std::exception_ptr failure_;
};

/// body(i) for i below n, in any order, on `threads` threads (0: all cores, never more than n); the
/// calling thread is one of them. The first exception ends the loop and is thrown again here.
template <typename Body>
void for_each_index(std::size_t n, unsigned threads, const Body& body) {
  if (n == 0) return;
  const std::size_t wanted = threads > 0 ? threads : std::thread::hardware_concurrency();
  WorkerPool pool(static_cast<int>(std::clamp<std::size_t>(wanted, 1, n)));
  pool.run(n, [&](std::size_t, std::size_t i) { body(i); });
}

}  // namespace shardwright
