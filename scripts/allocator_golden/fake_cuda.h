// SPDX-License-Identifier: Apache-2.0
// The clock and the memory behind fake_cuda.cc.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr std::uint64_t kFakeBase =
    (std::uint64_t{20} << 20) * 100000;  // a multiple of both page sizes

void fake_cuda_set_limit(std::uint64_t bytes);
void fake_cuda_set_now(std::int64_t time);
/// When everything that is queued on `stream` now will be complete.
void fake_cuda_set_busy_until(void* stream, std::int64_t time);
std::uint64_t fake_cuda_reserve(std::uint64_t size, std::uint64_t alignment);
int fake_cuda_create(std::uint64_t* handle, std::uint64_t size);
int fake_cuda_release(std::uint64_t handle);
