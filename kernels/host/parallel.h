// SPDX-License-Identifier: Apache-2.0
// What every host operation runs on: worker threads, their scratch memory and the kernels of one
// instruction set.
//
// Work is cut into tasks by the shapes alone; threads take tasks in any order, but each task writes
// only its own part of the result and every sum inside it has a fixed order. So results never
// depend on the number of threads. Several threads (ranks, streams) may use one Parallel at the
// same time: each works on its own job and idle workers help whichever job has tasks left.
//
// A pool of its own beside sim/core/base/worker_pool.h, because a kernel is shorter than a thread
// takes to wake: workers stay awake for a while between jobs, jobs of several callers (ranks,
// streams) are open at once, and each task gets scratch memory and the instruction set's kernels.
//
// Scratch is a constant number of bytes a thread, so that it can be planned for; larger workspaces
// are arguments of the operations that need them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

namespace shardwright::kernels::host {

// The instruction set that the host kernels use, chosen when the program runs.
//
// kernels/host/simd is compiled once for each Isa, and a table of functions is picked by what the
// processor has, so one binary runs on any x86-64. Given the same inputs kAvx2 and kAvx512 give the
// same bits except in GEMMs, whose order of summation is the library's; kBaseline has no
// fused multiply-add and differs in the last bits. Ranks that must agree bit for bit name one Isa.

enum class Isa { kBaseline, kAvx2, kAvx512 };

/// "baseline", "avx2", "avx512".
std::string_view name_of(Isa isa);
std::optional<Isa> isa_from(std::string_view name);

/// True when this processor and this build have it. kBaseline is always there.
bool supported(Isa isa);
/// The supported ones, slowest first.
std::vector<Isa> supported_isas();
/// The fastest supported one, or the one that the environment names in SHARDWRIGHT_ISA.
Isa best_isa();

struct Kernels;  // kernels/host/simd/kernels.h

/// The table of a supported Isa.
const Kernels& kernels_of(Isa isa);

/// Memory of one thread, handed out in pieces that all return when the task ends.
class Scratch {
 public:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static constexpr std::size_t kAlignment = 64;

  Scratch();
  /// `count` floats, uninitialised, aligned to a cache line. Aborts when kBytes do not suffice:
  /// operations check their shapes before.
  float* floats(std::int64_t count);
  void reset() { used_ = 0; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete[](bytes, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  std::size_t used_ = 0;
};

class Parallel {
 public:
  /// `threads` counts the calling thread, so Parallel(1) starts none; fewer where the system has
  /// no more. Throws Error when it is not positive or the processor lacks `isa`.
  explicit Parallel(int threads, Isa isa = best_isa());
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  Isa isa() const { return isa_; }
  const Kernels& kernels() const { return *kernels_; }

  /// Calls body(task, scratch) once for every task in [0, tasks) and returns when all are done. The
  /// first exception of a task is thrown again here; tasks not yet started are then left out. A
  /// body must not call run().
  template <class Body>
  void run(std::int64_t tasks, Body&& body) {
    run_job(tasks, &invoke<std::remove_reference_t<Body>>, &body);
  }

  /// Cuts [0, count) into ranges of at most `grain` and calls body(begin, end, scratch) for each.
  template <class Body>
  void for_ranges(std::int64_t count, std::int64_t grain, Body&& body) {
    run((count + grain - 1) / grain, [&](std::int64_t task, Scratch& scratch) {
      const std::int64_t begin = task * grain;
      body(begin, begin + grain < count ? begin + grain : count, scratch);
    });
  }

 private:
  using Invoke = void (*)(const void* body, std::int64_t task, Scratch& scratch);
  struct Job;

  template <class Body>
  static void invoke(const void* body, std::int64_t task, Scratch& scratch) {
    (*const_cast<Body*>(static_cast<const Body*>(body)))(task, scratch);
  }
  void run_job(std::int64_t tasks, Invoke call, const void* body);
  void work();  // a worker's life
  Job* find_job();
  std::unique_ptr<Scratch> take_scratch();

  Isa isa_;
  const Kernels* kernels_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::vector<Job*> jobs_;                         // guarded by mutex_
  std::vector<std::unique_ptr<Scratch>> scratch_;  // of callers, guarded by mutex_
  std::atomic<std::uint64_t> posted_{0};           // jobs so far; idle workers watch it for a while
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace shardwright::kernels::host
