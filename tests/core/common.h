// SPDX-License-Identifier: Apache-2.0
// What tests of the core share: matchers, files for a while, and what is refused.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal_of;
using ::testing::StartsWith;

/// `text` after one to three edits: a byte of `bytes` put over one or between two, or some gone.
inline std::string damaged(std::string text, std::string_view bytes, std::mt19937& random) {
  for (auto edits = 1 + random() % 3; edits > 0; --edits) {
    const std::size_t at = random() % text.size();
    const char byte = bytes[random() % bytes.size()];
    switch (random() % 3) {
      case 0:
        text[at] = byte;
        break;
      case 1:
        text.insert(at, 1, byte);
        break;
      default:
        text.erase(at, 1 + random() % 4);
    }
  }
  return text;
}

}  // namespace shardwright
