// SPDX-License-Identifier: Apache-2.0
// A CUPTI for machines without a driver, in place of the functions that need one; records are read
// by the library itself.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright::testing {

struct FakeCupti {
  std::uint32_t version = CUPTI_API_VERSION;
  CUptiResult subscribe = CUPTI_SUCCESS;
  CUptiResult enable = CUPTI_SUCCESS;
  std::uint64_t clock_begin = 5'000'000'000'000;  // when steady_clock is zero
  std::size_t dropped = 0;                        // told with every buffer
};

void reset_fake_cupti(const FakeCupti& options = {});
/// What a launch on this thread leaves: the call, which is made now, the kernel and the id that was
/// pushed. The kernel's times are of steady_clock.
void fake_launch(const char* kernel, std::uint32_t stream, std::int64_t begin_ns,
                 std::int64_t end_ns);
/// What this thread launches on from now on.
void use_fake_device(std::uint32_t device);
std::vector<CUpti_ActivityKind> enabled_kinds();
int switched_on();  // how often kernels were enabled
std::size_t most_buffers();

}  // namespace shardwright::testing
