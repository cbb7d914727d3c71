// SPDX-License-Identifier: Apache-2.0
// Replays allocations, read from stdin, through PyTorch's own allocator library and prints what it
// did.
//
//   a HANDLE SIZE STREAM NOW             allocate      -> a HANDLE SIZE STREAM NOW = ADDRESS | none
//   f HANDLE [STREAM DONE_AT]...         free          -> the same line
//   e                                    empty_cache   -> the same line
// followed on every line by "; ALLOCATED ACTIVE RESERVED", and at the end by the peaks and
// counters. Frees of handles that were not allocated are left out. The first argument is the
// device's memory in bytes.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "fake_cuda.h"

// Exported by the library, declared in none of its headers.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has_primary_context)(c10::DeviceIndex));
}

namespace {

using c10::CachingDeviceAllocator::StatType;

c10::cuda::CUDAStream stream_of(int number) {
  return c10::cuda::getStreamFromExternal(
      reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(number) * 0x1000), 0);
}

template <typename Stat>
long now_of(const Stat& stat) {
  return stat[static_cast<std::size_t>(StatType::AGGREGATE)].current;
}
template <typename Stat>
long peak_of(const Stat& stat) {
  return stat[static_cast<std::size_t>(StatType::AGGREGATE)].peak;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  fake_cuda_set_limit(std::strtoull(argv[1], nullptr, 10));
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  allocator->init(1);
  std::map<long, void*> live;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream fields(line);
    char verb = 0;
    long handle = 0;
    fields >> verb;
    if (verb == 'a') {
      long size = 0, now = 0;
      int stream = 0;
      fields >> handle >> size >> stream >> now;
      fake_cuda_set_now(now);
      try {
        void* pointer =
            allocator->raw_alloc_with_stream(static_cast<std::size_t>(size), stream_of(stream));
        live[handle] = pointer;
        std::printf("%s = %lu", line.c_str(), reinterpret_cast<std::uint64_t>(pointer) - kFakeBase);
      } catch (const c10::OutOfMemoryError&) {
        std::printf("%s = none", line.c_str());
      }
    } else if (verb == 'f') {
      fields >> handle;
      const auto at = live.find(handle);
      if (at == live.end()) continue;
      c10::DataPtr data(at->second, at->second, allocator->raw_deleter(),
                        c10::Device(c10::DeviceType::CUDA, 0));
      int stream = 0;
      long done_at = 0;
      while (fields >> stream >> done_at) {
        allocator->recordStream(data, stream_of(stream));
        fake_cuda_set_busy_until(stream_of(stream).stream(), done_at);
      }
      data.clear();  // frees, and records the events
      live.erase(at);
      std::printf("%s", line.c_str());
    } else {
      allocator->emptyCache();
      std::printf("%s", line.c_str());
    }
    const auto stats = allocator->getDeviceStats(0);
    std::printf("; %ld %ld %ld\n", now_of(stats.allocated_bytes), now_of(stats.active_bytes),
                now_of(stats.reserved_bytes));
  }
  const auto stats = allocator->getDeviceStats(0);
  std::printf("peaks %ld %ld %ld\nretries %ld ooms %ld\n", peak_of(stats.allocated_bytes),
              peak_of(stats.active_bytes), peak_of(stats.reserved_bytes),
              static_cast<long>(stats.num_alloc_retries), static_cast<long>(stats.num_ooms));
  std::fflush(stdout);
  std::_Exit(0);  // the library's own teardown expects a device
}
