// SPDX-License-Identifier: Apache-2.0
// What an action says when it refuses: the sentence of its Error.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/core/base/error.h"

namespace shardwright::testing {

/// The sentence of the Error that `action` throws, which must have this code; "accepted" when it
/// throws none.
template <typename Action>
std::string refusal_of(Action&& action, ExitCode code = ExitCode::kBadInput) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "accepted";
}

}  // namespace shardwright::testing
