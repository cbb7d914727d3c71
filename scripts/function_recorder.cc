// SPDX-License-Identifier: Apache-2.0
// Which functions of a program ran, for scripts/test_map, which preloads this: a program compiled
// with -finstrument-functions calls __cyg_profile_func_enter, and writes their addresses at its end
// to a file of the folder that the variable SHARDWRIGHT_FUNCTIONS names, below its own path.
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kSlotBits = 18;
constexpr std::size_t kSlots = std::size_t{1} << kSlotBits;
std::atomic<void*> g_functions[kSlots];

// The program itself is the first that is listed.
int base_of_program(dl_phdr_info* info, std::size_t, void* base) {
  *static_cast<std::uintptr_t*>(base) = info->dlpi_addr;
  return 1;
}

__attribute__((destructor)) void write_functions() {
  const char* folder = std::getenv("SHARDWRIGHT_FUNCTIONS");
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (folder == nullptr || length < 0) return;
  program[length] = '\0';
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%d", folder, static_cast<int>(getpid()));
  std::FILE* file = nullptr;
  std::uintptr_t base = 0;
  dl_iterate_phdr(base_of_program, &base);
  for (const std::atomic<void*>& function : g_functions) {
    const auto address = reinterpret_cast<std::uintptr_t>(function.load());
    if (address == 0) continue;
    if (file == nullptr) {
      file = std::fopen(path, "w");
      if (file == nullptr) return;
      std::fprintf(file, "%s\n", program);
    }
    std::fprintf(file, "%zx\n", address - base);
  }
  if (file != nullptr) std::fclose(file);
}

}  // namespace

extern "C" {

void __cyg_profile_func_enter(void* function, void*) {
  std::size_t slot =
      reinterpret_cast<std::uintptr_t>(function) * 0x9E3779B97F4A7C15U >> (64 - kSlotBits);
  for (std::size_t n = 0; n < kSlots; ++n, slot = (slot + 1) % kSlots) {
    void* there = g_functions[slot].load(std::memory_order_relaxed);
    if (there == function) return;
    if (there == nullptr &&
        (g_functions[slot].compare_exchange_strong(there, function) || there == function)) {
      return;
    }
  }
}

void __cyg_profile_func_exit(void*, void*) {}
}
