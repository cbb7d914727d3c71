// SPDX-License-Identifier: Apache-2.0
// Threads of control inside one thread of the host: each has a stack of its own and runs until it
// suspends itself. They stand for the threads of a CUDA block, so a switch must cost nanoseconds:
// on x86-64 it is a dozen instructions, elsewhere ucontext.
#pragma once

#include <cstddef>
#include <functional>

namespace cuda_on_cpu {

class Fiber {
 public:
  static constexpr std::size_t kStackBytes = std::size_t{1} << 18;

  /// Stacks of different `number` begin at different cache lines.
  explicit Fiber(unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() begins body(argument), which must not throw. What the fiber did before is
  /// forgotten, finished or not; destructors of its frames do not run.
  void start(void (*body)(void*), void* argument);
  /// Runs the fiber until it suspends or its body returns.
  void resume();
  /// Back to whoever resumed this fiber. Called on the fiber only.
  void suspend();

 private:
  [[noreturn]] static void enter();
  void leave(bool for_good);

  std::byte* memory_ = nullptr;  // a guard page, then the stack
  std::size_t offset_;           // of the stack's beginning from its end
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;

  struct Context;
  Context* context_;
};

}  // namespace cuda_on_cpu
