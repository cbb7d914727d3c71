// SPDX-License-Identifier: Apache-2.0
// Guards the ranges that a profiler of others sees: one for each operation, none within another,
// and no bit of the training changed.
#include "exec/range_marker.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/exec/training.h"

namespace shardwright::exec {
namespace {

using namespace testing;

/// Keeps the names of ranges, which must not overlap.
class Ranges final : public RangeMarker {
 public:
  void begin(const std::string& name) override {
    EXPECT_FALSE(open_) << name;
    open_ = true;
    names.insert(name);
  }
  void end() override { open_ = false; }

  std::set<std::string> names;

 private:
  bool open_ = false;
};

TEST(RangeMarker, HearsOfEveryKindOfOperation) {
  Training training;
  training.plan = tiny_plan(Strategy::kYafsdp, 1);
  Ranges ranges;
  training.options.ranges = &ranges;
  const auto marked = train(training);
  for (const char* name : {"forward all_gather", "reduce reduce_scatter", "forward attention"}) {
    EXPECT_TRUE(ranges.names.contains(name)) << ::testing::PrintToString(ranges.names);
  }
  training.options.ranges = nullptr;
  expect_same_training(marked, train(training));
}

}  // namespace
}  // namespace shardwright::exec
