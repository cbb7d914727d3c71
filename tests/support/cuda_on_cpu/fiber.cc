// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_on_cpu/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if !defined(__x86_64__) || defined(CUDA_ON_CPU_UCONTEXT)
#define CUDA_ON_CPU_USES_UCONTEXT 1
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_on_cpu {
namespace {

constexpr std::size_t kGuardBytes = 4096;

thread_local Fiber* entering = nullptr;  // the fiber whose first frame is being made

}  // namespace

#ifdef CUDA_ON_CPU_USES_UCONTEXT

struct Fiber::Context {
  ucontext_t own, caller;
#else

// Saves what the System V ABI asks a function to keep, swaps stacks, and returns on the other one.
extern "C" void cuda_on_cpu_switch(void** save_stack, void* load_stack);
asm(R"(
.text
.p2align 4
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_on_cpu_switch, . - cuda_on_cpu_switch
)");

struct Fiber::Context {
  void* own = nullptr;
  void* caller = nullptr;
#endif
  // What AddressSanitizer wants to know about both stacks.
  void* own_shadow = nullptr;
  void* caller_shadow = nullptr;
  const void* caller_bottom = nullptr;
  std::size_t caller_bytes = 0;
};

Fiber::Fiber(unsigned number)
    // 37 is odd, so neighbours walk through all 64 lines of a page before one repeats.
    : offset_(64 * (number * 37 % 64)), context_(new Context) {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  mprotect(memory_, kGuardBytes, PROT_NONE);
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory_ + kGuardBytes, kStackBytes);
#endif
  munmap(memory_, kGuardBytes + kStackBytes);
  delete context_;
}

void Fiber::start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory_ + kGuardBytes, kStackBytes);
  context_->own_shadow = nullptr;
#endif
  const std::size_t bytes = kStackBytes - offset_;
#ifdef CUDA_ON_CPU_USES_UCONTEXT
  getcontext(&context_->own);
  context_->own.uc_stack.ss_sp = memory_ + kGuardBytes;
  context_->own.uc_stack.ss_size = bytes;
  context_->own.uc_link = nullptr;
  makecontext(&context_->own, reinterpret_cast<void (*)()>(&Fiber::enter), 0);
#else
  // Six registers, the address that the first switch returns to, and the return address that
  // enter() would find, which ends backtraces.
  void* frame[8] = {};
  frame[6] = reinterpret_cast<void*>(&Fiber::enter);
  std::byte* top = memory_ + kGuardBytes + bytes - sizeof frame;
  std::memcpy(top, frame, sizeof frame);
  context_->own = top;
#endif
}

void Fiber::enter() {
  Fiber* const self = entering;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->context_->caller_bottom,
                                  &self->context_->caller_bytes);
#endif
  self->body_(self->argument_);
  self->leave(true);
  std::abort();
}

void Fiber::resume() {
  entering = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->caller_shadow, memory_ + kGuardBytes, kStackBytes);
#endif
#ifdef CUDA_ON_CPU_USES_UCONTEXT
  swapcontext(&context_->caller, &context_->own);
#else
  cuda_on_cpu_switch(&context_->caller, context_->own);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->caller_shadow, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
  leave(false);
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &context_->own_shadow,
                                 context_->caller_bottom, context_->caller_bytes);
#endif
#ifdef CUDA_ON_CPU_USES_UCONTEXT
  swapcontext(&context_->own, &context_->caller);
#else
  cuda_on_cpu_switch(&context_->own, context_->caller);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->own_shadow, &context_->caller_bottom,
                                  &context_->caller_bytes);
#endif
}

}  // namespace cuda_on_cpu
