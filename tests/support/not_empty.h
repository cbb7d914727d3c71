// SPDX-License-Identifier: Apache-2.0
// A range that a test loops over, with the expectation that there is something in it: assertions in
// the body of a loop over nothing hold whatever the code does.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <utility>

namespace shardwright {

/// `range` itself; fails the test when it is empty.
template <typename Range>
Range not_empty(Range&& range) {
  using std::begin, std::end;
  EXPECT_FALSE(begin(range) == end(range)) << "a loop of assertions over nothing";
  return std::forward<Range>(range);
}

}  // namespace shardwright
