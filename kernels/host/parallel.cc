// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/parallel.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <system_error>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::kernels::host {
namespace {

// Waking a sleeping thread takes longer than many operations of a small model, so a thread looks
// for work this many times before it sleeps: some hundreds of microseconds, longer than any stretch
// of a step that one thread computes alone.
constexpr int kSpins = 20000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

#define SHARDWRIGHT_SIMD(isa)           \
  namespace isa {                       \
  void add_attention(Kernels&);         \
  void add_elementwise(Kernels&);       \
  void add_gemm(Kernels&);              \
  void add_rows(Kernels&);              \
  const Kernels& table() {              \
    static const Kernels kernels = [] { \
      Kernels all{};                    \
      add_attention(all);               \
      add_elementwise(all);             \
      add_gemm(all);                    \
      add_rows(all);                    \
      return all;                       \
    }();                                \
    return kernels;                     \
  }                                     \
  }
SHARDWRIGHT_SIMD(baseline)
#if defined(__x86_64__)
SHARDWRIGHT_SIMD(avx2)
SHARDWRIGHT_SIMD(avx512)
#endif
#undef SHARDWRIGHT_SIMD

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<Isa> isa_from(std::string_view name) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (name == name_of(isa)) return isa;
  }
  return std::nullopt;
}

bool supported(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return true;
#if defined(__x86_64__)
    // What -march=x86-64-v3 and -v4 let the compiler use.
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    case Isa::kAvx512:
      return supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    default:
      return false;
#endif
  }
  return false;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa best_isa() {
  const std::vector<Isa> isas = supported_isas();
  const char* name = std::getenv("SHARDWRIGHT_ISA");
  if (name == nullptr || *name == '\0') return isas.back();
  std::vector<std::string_view> names;
  for (const Isa isa : isas) {
    if (name_of(isa) == name) return isa;
    names.push_back(name_of(isa));
  }
  throw Error(fmt::format("SHARDWRIGHT_ISA is '{}', expected what this processor has: {}", name,
                          fmt::join(names, ", ")));
}

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::table();
  if (isa == Isa::kAvx2) return avx2::table();
#endif
  return baseline::table();
}

Scratch::Scratch()
    : bytes_(static_cast<std::byte*>(::operator new[](kBytes, std::align_val_t{kAlignment}))) {}

float* Scratch::floats(std::int64_t count) {
  const std::size_t bytes =
      (static_cast<std::size_t>(count) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  SHARDWRIGHT_CHECK(count >= 0 && bytes <= kBytes - used_, "scratch of {} floats", count);
  std::byte* at = bytes_.get() + used_;
  used_ += bytes;
  return reinterpret_cast<float*>(at);
}

struct Parallel::Job {
  Invoke invoke;
  const void* body;
  std::int64_t tasks;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> helpers{0};  // raised under the mutex while the job is listed
  std::mutex error_mutex;
  std::exception_ptr error;

  void work(Scratch& scratch) {
    for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      try {
        scratch.reset();
        invoke(body, task, scratch);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(tasks, std::memory_order_relaxed);
      }
    }
  }
};

Parallel::Parallel(int threads, Isa isa) : isa_(isa) {
  if (threads < 1) {
    throw Error(fmt::format("the number of threads is {}, expected at least 1", threads));
  }
  if (!supported(isa)) {
    throw Error(fmt::format("this processor lacks the instruction set {}, expected {} or slower",
                            name_of(isa), name_of(best_isa())));
  }
  kernels_ = &kernels_of(isa);
  workers_.reserve(static_cast<std::size_t>(threads) - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Fewer do the same work.
  }
}

Parallel::~Parallel() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::unique_ptr<Scratch> Parallel::take_scratch() {
  if (scratch_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(scratch_.back());
  scratch_.pop_back();
  return scratch;
}

void Parallel::run_job(std::int64_t tasks, Invoke call, const void* body) {
  if (tasks <= 0) return;
  Job job{.invoke = call, .body = body, .tasks = tasks, .error_mutex = {}, .error = {}};
  const bool shared = tasks > 1 && !workers_.empty();
  std::unique_ptr<Scratch> scratch;
  {
    const std::lock_guard lock(mutex_);
    scratch = take_scratch();
    if (shared) {
      jobs_.push_back(&job);
      posted_.fetch_add(1, std::memory_order_release);
    }
  }
  if (shared) wake_.notify_all();
  job.work(*scratch);

  if (shared) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    }
    for (int i = 0; i < kSpins && job.helpers.load(std::memory_order_acquire) != 0; ++i) pause();
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return job.helpers.load(std::memory_order_acquire) == 0; });
  scratch_.push_back(std::move(scratch));
  lock.unlock();
  if (job.error) std::rethrow_exception(job.error);
}

Parallel::Job* Parallel::find_job() {
  for (Job* job : jobs_) {
    if (job->next.load(std::memory_order_relaxed) < job->tasks) return job;
  }
  return nullptr;
}

void Parallel::work() {
  Scratch scratch;
  std::unique_lock lock(mutex_);
  while (true) {
    if (Job* job = find_job()) {
      job->helpers.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->work(scratch);
      lock.lock();
      // Under the lock, so that the owner cannot see zero and leave before the notification.
      if (job->helpers.fetch_sub(1, std::memory_order_release) == 1) finished_.notify_all();
      continue;
    }
    if (stop_.load()) return;
    const std::uint64_t seen = posted_.load(std::memory_order_acquire);
    lock.unlock();
    for (int i = 0; i < kSpins && posted_.load(std::memory_order_acquire) == seen; ++i) pause();
    lock.lock();
    wake_.wait(lock, [&] { return stop_.load() || find_job() != nullptr; });
  }
}

}  // namespace shardwright::kernels::host
