// SPDX-License-Identifier: Apache-2.0
// Text for a terminal without colours, which has a hundred columns.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cli/text.h"

namespace shardwright::cli {

inline const Terminal kPlain{};

inline void expect_fits(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 100) << line;
}

}  // namespace shardwright::cli
