// Calls a function for every index, on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace shardwright::sim {

/// body(i) for i below n, in any order, on `threads` threads (0: all cores); the calling thread is
/// one of them. The first exception ends the loop and is thrown again here.
template <typename Body>
void for_each_index(std::size_t n, unsigned threads, const Body& body) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < n; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = n;
      }
    }
  };
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t wanted = std::min<std::size_t>(threads > 0 ? threads : cores, n);
  {
    std::vector<std::jthread> pool;
    for (std::size_t i = 1; i < wanted; ++i) pool.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shardwright::sim
