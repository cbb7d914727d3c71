// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_on_cpu/emulation.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda_on_cpu/fiber.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_on_cpu {
namespace {

constexpr std::size_t kMaxSharedBytes = 232448;  // of a block on sm_90 and sm_100
constexpr std::size_t kSharedAlignment = 1024;
constexpr std::size_t kCanaryBytes = 1024;
constexpr std::uint32_t kPoison = 0x7fa17fa1u;  // a NaN, as one float or as two bf16
constexpr unsigned kWarp = 32;

std::atomic<std::uint64_t> order_seed{0};

enum class State : std::uint8_t { kReady, kAtBarrier, kInWarp, kDone };

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

struct Thread {
  explicit Thread(unsigned place) : fiber(place) {}
  Fiber fiber;
  State state = State::kDone;
  uint3 index{};
  unsigned number = 0;
  std::vector<std::vector<Copy>> copy_groups;  // oldest first; the last one is still open
};

struct Warp {
  std::uint32_t present = 0;  // lanes that wait in a collective
  std::uint32_t done = 0;     // lanes whose thread has ended, or that never were
  std::uint32_t mask[kWarp];
  WarpOperation operation[kWarp];
  const void* in[kWarp];
  void* out[kWarp];
};

/// splitmix64.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

template <class T>
void shuffle(std::vector<T>& items, std::uint64_t& random) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[next_random(random) % i]);
  }
}

std::string text(uint3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

/// One host thread's GPU: runs one block at a time.
class Machine {
 public:
  void run(const Launch& launch);

  void* shared_memory() { return shared_; }
  std::size_t shared_bytes() const { return launch_->shared_bytes; }
  Thread& current() { return *current_; }
  int barrier(bool vote);
  void warp_collective(std::uint32_t mask, WarpOperation operation, const void* in, void* out);
  [[noreturn]] void fail(const std::string& what) const;
  bool running() const { return launch_ != nullptr; }

 private:
  void run_block();
  bool resume(unsigned number);
  bool run_warp(unsigned warp);
  void start_threads();
  void prepare_shared();
  void check_canary() const;
  void run_thread();
  [[noreturn]] void explain_standstill() const;
  void wait(State state);

  const Launch* launch_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;  // kept from launch to launch
  std::vector<Warp> warps_;
  unsigned count_ = 0;  // threads of the block
  unsigned done_ = 0;
  unsigned at_barrier_ = 0;
  int votes_ = 0;
  int barrier_result_ = 0;
  Thread* current_ = nullptr;
  std::exception_ptr failure_;
  std::vector<std::byte> shared_storage_;
  std::byte* shared_ = nullptr;
  std::vector<unsigned> order_;
  std::uint64_t random_ = 0;
  bool shuffles_ = false;
  bool runs_ahead_ = false;  // a warp runs until all its threads wait for other warps
};

Machine& machine() {
  thread_local Machine instance;
  return instance;
}

void Machine::fail(const std::string& what) const {
  throw Failure("kernel " + launch_->name + ", block " + text(blockIdx) + ": " + what);
}

void Machine::prepare_shared() {
  const std::size_t bytes = launch_->shared_bytes;
  if (shared_storage_.empty()) {
    shared_storage_.resize(kMaxSharedBytes + kSharedAlignment + kCanaryBytes);
    const auto address = reinterpret_cast<std::uintptr_t>(shared_storage_.data());
    shared_ = shared_storage_.data() + (kSharedAlignment - address % kSharedAlignment);
  }
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(shared_, kMaxSharedBytes + kCanaryBytes);
#endif
  const std::size_t filled = bytes + kCanaryBytes;
  for (std::size_t at = 0; at < filled; at += 4) {
    std::memcpy(shared_ + at, &kPoison, std::min<std::size_t>(4, filled - at));
  }
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(shared_ + bytes, kMaxSharedBytes + kCanaryBytes - bytes);
#endif
}

void Machine::check_canary() const {
#if !defined(__SANITIZE_ADDRESS__)
  const std::size_t begin = launch_->shared_bytes;
  for (std::size_t at = begin; at < begin + kCanaryBytes; ++at) {
    const auto expected = static_cast<std::byte>(kPoison >> 8 * (at % 4));
    if (shared_[at] != expected) {
      fail("wrote behind its " + std::to_string(begin) +
           " bytes of dynamic shared memory, at byte " + std::to_string(at));
    }
  }
#endif
}

void Machine::run_thread() {
  try {
    launch_->thread();
  } catch (...) {
    failure_ = std::current_exception();
  }
  current_->state = State::kDone;
  ++done_;
  warps_[current_->number / kWarp].done |= 1u << current_->number % kWarp;
}

void Machine::start_threads() {
  while (threads_.size() < count_) {
    threads_.push_back(std::make_unique<Thread>(static_cast<unsigned>(threads_.size())));
  }
  const dim3& block = launch_->block;
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.number = i;
    thread.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    thread.state = State::kReady;
    thread.copy_groups.clear();
    thread.fiber.start([](void* self) { static_cast<Machine*>(self)->run_thread(); }, this);
  }
  warps_.assign((count_ + kWarp - 1) / kWarp, Warp{});
  if (count_ % kWarp != 0) warps_.back().done = ~0u << count_ % kWarp;
}

bool Machine::resume(unsigned number) {
  Thread& thread = *threads_[number];
  if (thread.state != State::kReady) return false;
  current_ = &thread;
  threadIdx = thread.index;
  thread.fiber.resume();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return true;
}

bool Machine::run_warp(unsigned warp) {
  const unsigned begin = warp * kWarp, end = std::min(begin + kWarp, count_);
  bool progress = false;
  for (bool more = true; more; progress |= more) {
    more = false;
    for (unsigned number = begin; number < end; ++number) more |= resume(number);
  }
  return progress;
}

void Machine::run_block() {
  start_threads();
  prepare_shared();
  done_ = at_barrier_ = 0;
  votes_ = 0;
  while (done_ < count_) {
    if (shuffles_) shuffle(order_, random_);
    bool progress = false;
    for (const unsigned number : order_) {
      progress |= runs_ahead_ ? run_warp(number / kWarp) : resume(number);
    }
    if (!progress) explain_standstill();
  }
  check_canary();
}

void Machine::explain_standstill() const {
  unsigned in_warp = 0;
  for (unsigned i = 0; i < count_; ++i) in_warp += threads_[i]->state == State::kInWarp;
  std::string what = std::to_string(at_barrier_) + " of " + std::to_string(count_) +
                     " threads wait at __syncthreads, " + std::to_string(done_) + " have ended";
  if (in_warp > 0) {
    what += " and " + std::to_string(in_warp) + " wait for lanes of their warp";
  }
  fail(what);
}

void Machine::run(const Launch& launch) {
  const std::string broken = broken_limit(launch);
  if (!broken.empty()) throw Failure("kernel " + launch.name + ": " + broken);
  if (running()) throw Failure("kernel " + launch.name + " is launched by a kernel");
  struct Reset {
    Machine& machine;
    ~Reset() { machine.launch_ = nullptr; }
  } reset{*this};
  launch_ = &launch;
  random_ = order_seed.load();
  shuffles_ = random_ != 0;
  runs_ahead_ = random_ % 2 == 1;
  count_ = launch.block.x * launch.block.y * launch.block.z;
  order_.resize(count_);
  std::iota(order_.begin(), order_.end(), 0u);
  blockDim = launch.block;
  gridDim = launch.grid;

  const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::vector<std::uint64_t> block_order(shuffles_ ? blocks : 0);
  std::iota(block_order.begin(), block_order.end(), std::uint64_t{0});
  shuffle(block_order, random_);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t block = shuffles_ ? block_order[i] : i;
    blockIdx = {static_cast<unsigned>(block % launch.grid.x),
                static_cast<unsigned>(block / launch.grid.x % launch.grid.y),
                static_cast<unsigned>(block / launch.grid.x / launch.grid.y)};
    run_block();
  }
}

void Machine::wait(State state) {
  current_->state = state;
  current_->fiber.suspend();
}

int Machine::barrier(bool vote) {
  votes_ += vote;
  if (++at_barrier_ < count_) {
    wait(State::kAtBarrier);
  } else {
    barrier_result_ = votes_;
    votes_ = 0;
    at_barrier_ = 0;
    for (unsigned i = 0; i < count_; ++i) threads_[i]->state = State::kReady;
  }
  return barrier_result_;
}

void Machine::warp_collective(std::uint32_t mask, WarpOperation operation, const void* in,
                              void* out) {
  const unsigned number = current_->number;
  const unsigned self = number % kWarp;
  Warp& warp = warps_[number / kWarp];
  if ((mask >> self & 1) == 0) {
    fail("lane " + std::to_string(self) + " calls a warp operation whose mask leaves it out");
  }
  if ((mask & warp.done) != 0) {
    fail("a warp operation waits for lanes that have ended or are not part of the block");
  }
  warp.mask[self] = mask;
  warp.operation[self] = operation;
  warp.in[self] = in;
  warp.out[self] = out;
  warp.present |= 1u << self;
  if ((warp.present & mask) != mask) {
    wait(State::kInWarp);
    return;
  }
  const void* ins[kWarp] = {};
  void* outs[kWarp] = {};
  for (unsigned l = 0; l < kWarp; ++l) {
    if ((mask >> l & 1) == 0) continue;
    if (warp.mask[l] != mask || warp.operation[l] != operation) {
      fail("lanes " + std::to_string(self) + " and " + std::to_string(l) +
           " of a warp meet in different operations or with different masks");
    }
    ins[l] = warp.in[l];
    outs[l] = warp.out[l];
  }
  operation(mask, ins, outs);
  warp.present &= ~mask;
  for (unsigned l = 0; l < kWarp; ++l) {
    if ((mask >> l & 1) != 0) threads_[number - self + l]->state = State::kReady;
  }
}

Runner& the_runner() {
  static Runner instance{run};
  return instance;
}

void complete(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
    } else {
      std::memset(copy.to, 0, static_cast<std::size_t>(copy.bytes));
    }
  }
}

}  // namespace

std::string broken_limit(const Launch& launch) {
  const dim3 &grid = launch.grid, &block = launch.block;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64) {
    return "a block of " + text({block.x, block.y, block.z}) + " threads, expected 1 to 1024";
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535) {
    return "a grid of " + text({grid.x, grid.y, grid.z}) +
           " blocks, expected at most (2147483647, 65535, 65535)";
  }
  if (launch.shared_bytes > kMaxSharedBytes) {
    return std::to_string(launch.shared_bytes) +
           " bytes of dynamic shared memory, expected at most " + std::to_string(kMaxSharedBytes);
  }
  return "";
}

void run(const Launch& launch) {
  machine().run(launch);
}

void set_runner(Runner runner) {
  the_runner() = runner ? std::move(runner) : Runner{run};
}
const Runner& runner() {
  return the_runner();
}

void set_options(const Options& options) {
  order_seed = options.order_seed;
}
Options options() {
  return {order_seed.load()};
}

void* shared_memory() {
  return machine().shared_memory();
}
std::size_t shared_bytes() {
  return machine().shared_bytes();
}
void fail(const std::string& what) {
  machine().fail(what);
}
int barrier(bool vote) {
  return machine().barrier(vote);
}
void warp_collective(std::uint32_t mask, WarpOperation operation, const void* in, void* out) {
  machine().warp_collective(mask, operation, in, out);
}
unsigned lane() {
  return machine().current().number % kWarp;
}

void async_copy(void* to, const void* from, int bytes) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (address % static_cast<unsigned>(bytes) != 0) {
    const std::string size = std::to_string(bytes);
    fail("cp.async of " + size + " bytes at an address that is no multiple of " + size);
  }
  // A GPU copies at any time until the wait. Orders of even seeds copy as late, those of odd seeds
  // as early as possible.
  if (order_seed.load() % 2 == 1) return complete({{to, from, bytes}});
  auto& groups = machine().current().copy_groups;
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({to, from, bytes});
}

void async_commit() {
  auto& groups = machine().current().copy_groups;
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}

void async_wait(int groups_left) {
  auto& groups = machine().current().copy_groups;
  while (static_cast<int>(groups.size()) - 1 > groups_left) {
    complete(groups.front());
    groups.erase(groups.begin());
  }
}

}  // namespace cuda_on_cpu
