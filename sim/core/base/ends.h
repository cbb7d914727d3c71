// SPDX-License-Identifier: Apache-2.0
// The first and the last of what a stranger's file was read into: nothing there is a sentence,
// never undefined behaviour. Readers of such files use these alone (scripts/check_includes).
#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright {

[[noreturn]] inline void fail_empty(std::string_view what) {
  throw Error(std::string(what) + " is empty, expected at least one entry");
}

/// Throws Error beginning with `what` where there is none.
template <typename Range>
auto& first_of(Range& range, std::string_view what) {
  if (range.empty()) fail_empty(what);
  return *range.begin();
}

template <typename Range>
auto& last_of(Range& range, std::string_view what) {
  if (range.empty()) fail_empty(what);
  return *std::prev(range.end());
}

}  // namespace shardwright
