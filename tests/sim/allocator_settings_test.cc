// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles/data_dir.h"
#include "profiles/profile.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "sim/predict.h"

namespace shardwright::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

MemoryPrediction memory_with(const std::vector<std::string>& set,
                             const std::string& stack = "hf-eager") {
  Plan plan;
  plan.strategy = Strategy::kFsdp1;
  plan.gpus = plan.shard_group = 32;
  plan.seq_len = 2048;
  plan.micro_batch = 2;
  plan.grad_accum = 3;
  plan.ckpt_layers = 7;
  plan.recompute = Recompute::kFull;
  return predict(load_model(profiles::data_dir() / "models", "llama-3-8b"),
                 profiles::load_profile("dgx-h100", stack, set), plan)
      .memory;
}

TEST(AllocatorSettings, ExpandableSegmentsReserveLessForTheSameAllocations) {
  const MemoryPrediction native = memory_with({});
  const MemoryPrediction expandable = memory_with({"stack.allocator.expandable_segments=true"});
  EXPECT_EQ(expandable.peak_allocated_bytes, native.peak_allocated_bytes);
  EXPECT_GE(expandable.peak_reserved_bytes, expandable.peak_active_bytes);
  EXPECT_LT(expandable.peak_reserved_bytes, native.peak_reserved_bytes);
}

TEST(AllocatorSettings, LargeBlocksThatAreNotSplitChangeWhatIsReserved) {
  const MemoryPrediction native = memory_with({});
  const MemoryPrediction unsplit = memory_with({"stack.allocator.max_split_bytes=67108864"});
  EXPECT_EQ(unsplit.peak_allocated_bytes, native.peak_allocated_bytes);
  EXPECT_NE(unsplit.peak_reserved_bytes, native.peak_reserved_bytes);
}

TEST(AllocatorSettings, AreNothingToAStaticStack) {
  const MemoryPrediction arenas = memory_with({}, "native");
  EXPECT_EQ(memory_with({"stack.allocator.expandable_segments=true"}, "native").total_bytes,
            arenas.total_bytes);
}

TEST(AllocatorSettings, ASplitBelowTheSharedSegmentIsRefused) {
  EXPECT_THAT([] { memory_with({"stack.allocator.max_split_bytes=1000000"}); },
              ThrowsMessage<Error>(HasSubstr("stack.allocator.max_split_bytes is 1000000")));
}

}  // namespace
}  // namespace shardwright::sim
