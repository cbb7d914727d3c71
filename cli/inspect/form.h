// SPDX-License-Identifier: Apache-2.0
// In which form `inspect` answers.
#pragma once

#include <cstdint>

namespace shardwright::cli {

enum class Form : std::uint8_t {
  kText,  // words and tables for people
  kJson   // one document
};

}  // namespace shardwright::cli
