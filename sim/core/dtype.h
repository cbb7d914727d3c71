// SPDX-License-Identifier: Apache-2.0
// Types of numbers in parameters, gradients and optimizer state.
#pragma once

#include <cstdint>

namespace shardwright {

enum class DType : std::uint8_t { kFp32, kBf16 };
constexpr std::int64_t bytes_of(DType dtype) {
  return dtype == DType::kFp32 ? 4 : 2;
}

}  // namespace shardwright
