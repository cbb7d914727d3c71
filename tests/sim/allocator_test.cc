// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/allocator.h"

#include <iterator>
#include <utility>

#include "tests/sim/prediction.h"
#include "tests/sim/reference_allocator.h"
#include "tests/support/parameter_name.h"

namespace shardwright::sim {

namespace {

using BlockId = CachingAllocator::BlockId;
using StreamUse = CachingAllocator::StreamUse;
constexpr Bytes kKi = 1024;
constexpr Bytes kMi = 1024 * kKi;

BlockId must(std::optional<BlockId> block) {
  EXPECT_TRUE(block.has_value());
  return block.value_or(CachingAllocator::kEmptyBlock);
}

// Golden cases, computed by hand from the constants in c10/cuda/CUDACachingAllocator.cpp.

struct Rounding {
  Bytes size;
  Bytes allocated;
  Bytes reserved;
};

void PrintTo(const Rounding& rounding, std::ostream* out) {
  *out << rounding.size << " bytes";
}

class AllocatorRounding : public ::testing::TestWithParam<Rounding> {};

TEST_P(AllocatorRounding, OneBlock) {
  CachingAllocator allocator;
  must(allocator.allocate(GetParam().size, 0, 0));
  EXPECT_EQ(allocator.stats().allocated.now, GetParam().allocated);
  EXPECT_EQ(allocator.stats().reserved.now, GetParam().reserved);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, AllocatorRounding,
    ::testing::Values(
        Rounding{1, 512, 2 * kMi}, Rounding{512, 512, 2 * kMi}, Rounding{513, 1024, 2 * kMi},
        Rounding{kMi, kMi, 2 * kMi},
        // Above 1 MiB: from a segment of 20 MiB, up to but without 10 MiB.
        Rounding{kMi + 1, kMi + 512, 20 * kMi}, Rounding{10 * kMi - 512, 10 * kMi - 512, 20 * kMi},
        // From there on in steps of 2 MiB; a rest of up to 1 MiB is not split off.
        Rounding{10 * kMi, 10 * kMi, 10 * kMi}, Rounding{10 * kMi + 1, 10 * kMi + 512, 12 * kMi},
        Rounding{11 * kMi - 512, 11 * kMi - 512, 12 * kMi}, Rounding{11 * kMi, 12 * kMi, 12 * kMi},
        Rounding{11 * kMi + 1, 12 * kMi, 12 * kMi}),
    parameter_name);

TEST(Allocator, SmallBlocksShareASegment) {
  CachingAllocator allocator;
  for (int i = 0; i < 4096; ++i) must(allocator.allocate(1, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 2 * kMi);
  EXPECT_EQ(allocator.stats().allocated.now, 2 * kMi);
  must(allocator.allocate(1, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 4 * kMi);
}

TEST(Allocator, TakesTheSmallestThatFitsAndSplitsIt) {
  CachingAllocator allocator;
  const BlockId large = must(allocator.allocate(40 * kMi, 0, 0));
  const BlockId medium = must(allocator.allocate(30 * kMi, 0, 0));
  const Bytes medium_address = allocator.block_address(medium);
  allocator.free(large);
  allocator.free(medium);
  const BlockId first = must(allocator.allocate(24 * kMi, 0, 0));
  EXPECT_EQ(allocator.block_address(first), medium_address);
  EXPECT_EQ(allocator.block_size(first), 24 * kMi);
  // 6 MiB remain there: enough for 5 MiB, of which 1 MiB is too little to split off.
  const BlockId second = must(allocator.allocate(5 * kMi, 0, 0));
  EXPECT_EQ(allocator.block_address(second), medium_address + 24 * kMi);
  EXPECT_EQ(allocator.block_size(second), 6 * kMi);
  EXPECT_EQ(allocator.stats().reserved.now, 70 * kMi);
}

TEST(Allocator, NeighboursMergeInAnyOrder) {
  for (const std::vector<int>& order :
       {std::vector{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}}) {
    CachingAllocator allocator;
    std::vector<BlockId> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(must(allocator.allocate(6 * kMi, 0, 0)));
    ASSERT_EQ(allocator.stats().reserved.now, 20 * kMi);
    for (const int i : order) allocator.free(blocks[static_cast<std::size_t>(i)]);
    EXPECT_EQ(allocator.block_size(must(allocator.allocate(20 * kMi, 0, 0))), 20 * kMi);
    EXPECT_EQ(allocator.stats().reserved.now, 20 * kMi);
  }
}

TEST(Allocator, StreamsDoNotShareFreeBlocks) {
  CachingAllocator allocator;
  allocator.free(must(allocator.allocate(64 * kMi, 0, 0)));
  must(allocator.allocate(64 * kMi, 1, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 128 * kMi);
  must(allocator.allocate(64 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 128 * kMi);
}

TEST(Allocator, OtherStreamsDeferReuseUntilAnAllocationSeesThemDone) {
  CachingAllocator allocator;
  const BlockId block = must(allocator.allocate(64 * kMi, 0, 0));
  allocator.free(block, StreamUse{1, 100});
  EXPECT_EQ(allocator.stats().allocated.now, 0);
  EXPECT_EQ(allocator.stats().active.now, 64 * kMi);
  must(allocator.allocate(64 * kMi, 0, 99));
  EXPECT_EQ(allocator.stats().reserved.now, 128 * kMi);
  EXPECT_EQ(allocator.stats().active.now, 128 * kMi);
  EXPECT_EQ(allocator.stats().active.peak, 128 * kMi);
  EXPECT_EQ(allocator.stats().allocated.peak, 64 * kMi);
  must(allocator.allocate(64 * kMi, 0, 100));
  EXPECT_EQ(allocator.stats().reserved.now, 128 * kMi);
  EXPECT_EQ(allocator.stats().active.now, 128 * kMi);
}

TEST(Allocator, EveryOtherStreamCountsButNotItsOwn) {
  CachingAllocator allocator;
  const std::vector<StreamUse> uses = {{1, 10}, {2, 20}, {0, 1000}};
  allocator.free(must(allocator.allocate(64 * kMi, 0, 0)), uses);
  must(allocator.allocate(1, 0, 10));
  EXPECT_EQ(allocator.stats().active.now, 64 * kMi + 512);
  must(allocator.allocate(1, 0, 20));
  EXPECT_EQ(allocator.stats().active.now, 1024);
  allocator.free(must(allocator.allocate(64 * kMi, 0, 20)), StreamUse{0, 1000});
  EXPECT_EQ(allocator.stats().active.now, 1024);
}

TEST(Allocator, BlocksAwaitingEventsDoNotMerge) {
  CachingAllocator allocator;
  const BlockId left = must(allocator.allocate(10 * kMi - 512, 0, 0));
  const BlockId right = must(allocator.allocate(10 * kMi - 512, 0, 0));
  allocator.free(left, StreamUse{1, 50});
  allocator.free(right);
  must(allocator.allocate(20 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 40 * kMi);
  must(allocator.allocate(20 * kMi, 0, 50));
  EXPECT_EQ(allocator.stats().reserved.now, 40 * kMi);
}

TEST(Allocator, RetriesByGivingBackTheCache) {
  // As test_out_of_memory_retry in PyTorch's test/test_cuda.py: half of the memory fits once, fails
  // beside itself, and fits again when freed.
  CachingAllocator allocator({.limit_bytes = 100 * kMi});
  const BlockId half = must(allocator.allocate(60 * kMi, 0, 0));
  EXPECT_FALSE(allocator.allocate(60 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 1);
  EXPECT_EQ(allocator.stats().num_ooms, 1);
  allocator.free(half, StreamUse{1, 500});
  must(allocator.allocate(60 * kMi, 1, 3));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 2);
  EXPECT_EQ(allocator.stats().num_ooms, 1);
  EXPECT_EQ(allocator.stats().num_device_frees, 1);
  EXPECT_EQ(allocator.stats().synchronized_until_ns, 500);
  EXPECT_EQ(allocator.stats().reserved.now, 60 * kMi);
}

TEST(Allocator, SplitSegmentsCannotBeGivenBack) {
  CachingAllocator allocator({.limit_bytes = 100 * kMi});
  allocator.free(must(allocator.allocate(60 * kMi, 0, 0)));
  const BlockId front = must(allocator.allocate(2 * kMi, 0, 0));
  EXPECT_FALSE(allocator.allocate(60 * kMi, 0, 0)) << "58 free MiB stay with the 2 in use";
  EXPECT_EQ(allocator.stats().reserved.now, 60 * kMi);
  allocator.free(front);
  must(allocator.allocate(60 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 1);
}

TEST(Allocator, MaxSplitSizeKeepsOversizeBlocksWhole) {
  CachingAllocator allocator({.limit_bytes = 150 * kMi, .max_split_bytes = 40 * kMi});
  const BlockId block = must(allocator.allocate(60 * kMi, 0, 0));
  allocator.free(block);
  must(allocator.allocate(2 * kMi, 0, 0));  // too small for it: its own segment of 20 MiB
  EXPECT_EQ(allocator.stats().reserved.now, 80 * kMi);
  const BlockId near = must(allocator.allocate(41 * kMi, 0, 0));  // within 20 MiB: the whole block
  EXPECT_EQ(allocator.block_size(near), 60 * kMi);
  allocator.free(near);
  must(allocator.allocate(40 * kMi, 0, 0));  // 20 MiB apart: a new segment
  EXPECT_EQ(allocator.stats().reserved.now, 120 * kMi);
  // 80 MiB do not fit beside; the block of 60 MiB goes and with it 90 are free. No full retry.
  must(allocator.allocate(50 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 0);
  EXPECT_THROW(CachingAllocator({.max_split_bytes = 20 * kMi}), Error);
}

TEST(Allocator, ExpandableSegmentsGrowInPages) {
  CachingAllocator allocator({.limit_bytes = 1000 * kMi, .expandable_segments = true});
  const BlockId first = must(allocator.allocate(50 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 60 * kMi);  // 3 pages of 20 MiB
  const BlockId second = must(allocator.allocate(50 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 100 * kMi);
  EXPECT_EQ(allocator.block_address(second), allocator.block_address(first) + 50 * kMi);
  must(allocator.allocate(1, 0, 0));  // the small pool has pages of 2 MiB
  EXPECT_EQ(allocator.stats().reserved.now, 102 * kMi);

  allocator.free(first);
  allocator.free(second);
  must(allocator.allocate(120 * kMi, 0, 0));  // 100 free MiB and one more page
  EXPECT_EQ(allocator.stats().reserved.now, 122 * kMi);
}

TEST(Allocator, ExpandableSegmentsGiveBackWholePages) {
  CachingAllocator allocator({.limit_bytes = 100 * kMi, .expandable_segments = true});
  const BlockId first = must(allocator.allocate(50 * kMi, 0, 0));
  const BlockId second = must(allocator.allocate(45 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 100 * kMi);
  allocator.free(first);
  must(allocator.allocate(40 * kMi, 1, 0));  // two of the three pages; the third holds `second`
  EXPECT_EQ(allocator.stats().reserved.now, 100 * kMi);
  EXPECT_EQ(allocator.stats().num_alloc_retries, 1);
  EXPECT_FALSE(allocator.allocate(20 * kMi, 1, 0));
  allocator.free(second);
  must(allocator.allocate(60 * kMi, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.now, 100 * kMi);
}

TEST(Allocator, EmptyCacheGivesBackWhatIsFree) {
  CachingAllocator allocator;
  const BlockId kept = must(allocator.allocate(30 * kMi, 0, 0));
  allocator.free(must(allocator.allocate(50 * kMi, 0, 0)), StreamUse{3, 7});
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved.now, 30 * kMi);
  EXPECT_EQ(allocator.stats().active.now, 30 * kMi);
  EXPECT_EQ(allocator.stats().reserved.peak, 80 * kMi);
  EXPECT_EQ(allocator.stats().num_alloc_retries, 0);
  allocator.free(kept);
}

TEST(Allocator, NothingTakesNothing) {
  CachingAllocator allocator({.limit_bytes = 0});
  const BlockId nothing = must(allocator.allocate(0, 0, 0));
  EXPECT_EQ(allocator.block_size(nothing), 0);
  allocator.free(nothing);
  EXPECT_FALSE(allocator.allocate(1, 0, 0));
  EXPECT_EQ(allocator.stats().reserved.peak, 0);
}

TEST(AllocatorDeathTest, FreeingTwiceIsABug) {
  CachingAllocator allocator;
  const BlockId block = must(allocator.allocate(1, 0, 0));
  allocator.free(block);
  EXPECT_DEATH(allocator.free(block), "freed but not allocated");
}

// Random sequences: the reference agrees on every address and gauge, and the properties hold.

struct Setting {
  std::string name;
  AllocatorOptions options;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

class RandomAllocations : public ::testing::TestWithParam<Setting> {};

Bytes random_size(std::mt19937& random) {
  constexpr Bytes kClasses[] = {512, 4 * kKi, kMi, 10 * kMi, 60 * kMi};
  const Bytes most = kClasses[random() % std::size(kClasses)];
  // Few distinct sizes, as in training, so that blocks are reused whole as well as split.
  return 1 + (random() % 2 == 0 ? static_cast<Bytes>(random()) % most
                                : most * static_cast<Bytes>(1 + random() % 8) / 8 - 1);
}

struct Live {
  BlockId block;
  ReferenceAllocator::Handle handle;
};

TEST_P(RandomAllocations, AgreeWithTheReference) {
  CachingAllocator allocator(GetParam().options);
  int failures = 0;
  std::int64_t retries = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    allocator.clear();
    ReferenceAllocator reference(GetParam().options);
    std::mt19937 random(seed);
    std::vector<Live> live;
    Nanoseconds now = 0;
    std::vector<Nanoseconds> stream_done(4, 0);  // streams run in order: their events too
    for (int step = 0; step < 400; ++step) {
      now += static_cast<Nanoseconds>(random() % 10);
      const auto choice = random() % 100;
      if (choice < 55 || live.empty()) {
        const Bytes size = random_size(random);
        const int stream = static_cast<int>(random() % 3);
        const auto block = allocator.allocate(size, stream, now);
        const auto handle = reference.allocate(size, stream, now);
        ASSERT_EQ(block.has_value(), handle.has_value()) << "seed " << seed << " step " << step;
        if (block) {
          ASSERT_EQ(std::pair(allocator.block_address(*block), allocator.block_size(*block)),
                    reference.where(*handle))
              << "seed " << seed << " step " << step << " size " << size;
          live.push_back({*block, *handle});
        } else {
          ++failures;
        }
      } else if (choice < 99) {
        const std::size_t victim = random() % live.size();
        std::vector<StreamUse> uses;
        while (random() % 3 == 0) {
          const std::size_t stream = random() % stream_done.size();
          stream_done[stream] =
              std::max(stream_done[stream], now + static_cast<Nanoseconds>(random() % 100));
          uses.push_back({static_cast<int>(stream), stream_done[stream]});
        }
        allocator.free(live[victim].block, uses);
        reference.free(live[victim].handle, uses);
        live[victim] = live.back();
        live.pop_back();
      } else {
        allocator.empty_cache();
        reference.empty_cache();
      }
      const AllocatorStats& stats = allocator.stats();
      ASSERT_EQ(stats.allocated.now, reference.allocated.now)
          << "seed " << seed << " step " << step;
      ASSERT_EQ(stats.active.now, reference.active.now) << "seed " << seed << " step " << step;
      ASSERT_EQ(stats.reserved.now, reference.reserved.now) << "seed " << seed << " step " << step;
      ASSERT_EQ(stats.allocated.peak, reference.allocated.peak);
      ASSERT_EQ(stats.active.peak, reference.active.peak);
      ASSERT_EQ(stats.reserved.peak, reference.reserved.peak);
      ASSERT_EQ(stats.num_alloc_retries, reference.retries);
      ASSERT_EQ(stats.num_ooms, reference.ooms);
    }
    retries += reference.retries;
  }
  if (GetParam().options.limit_bytes < AllocatorOptions::kUnlimited) {
    EXPECT_GT(failures, 0) << "the limit is never reached: the test shows less than it claims";
    EXPECT_GT(retries, failures) << "no retry ever helps";
  }
}

TEST_P(RandomAllocations, KeepTheInvariants) {
  CachingAllocator allocator(GetParam().options);
  std::mt19937 random(99);
  std::vector<BlockId> live;
  Nanoseconds now = 0;
  const auto check = [&] {
    const AllocatorStats& stats = allocator.stats();
    ASSERT_GE(stats.reserved.now, stats.active.now);
    ASSERT_GE(stats.active.now, stats.allocated.now);
    ASSERT_LE(stats.reserved.peak, GetParam().options.limit_bytes);
    std::vector<std::pair<Bytes, Bytes>> ranges;
    Bytes sum = 0;
    for (const BlockId block : not_empty(live)) {
      ranges.emplace_back(allocator.block_address(block), allocator.block_size(block));
      sum += allocator.block_size(block);
    }
    ASSERT_EQ(sum, stats.allocated.now);
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      ASSERT_LE(ranges[i - 1].first + ranges[i - 1].second, ranges[i].first) << "blocks overlap";
    }
  };
  for (int step = 0; step < 3000; ++step) {
    now += 5;
    if (random() % 2 == 0 || live.empty()) {
      const Bytes size = random_size(random);
      if (const auto block = allocator.allocate(size, static_cast<int>(random() % 4), now)) {
        EXPECT_GE(allocator.block_size(*block), size);
        live.push_back(*block);
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      const auto wait = static_cast<Nanoseconds>(random() % 50);
      allocator.free(live.back(), StreamUse{static_cast<int>(random() % 4), now + wait});
      live.pop_back();
    }
    if (step % 10 == 0) check();
  }
  for (const BlockId block : live) allocator.free(block);
  EXPECT_EQ(allocator.stats().allocated.now, 0);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().active.now, 0);
  EXPECT_EQ(allocator.stats().reserved.now, 0);
}

TEST_P(RandomAllocations, ClearRepeatsTheSameRun) {
  CachingAllocator reused(GetParam().options);
  std::vector<Bytes> runs[2];
  for (std::vector<Bytes>& run : runs) {
    reused.clear();
    std::mt19937 random(5);
    std::vector<BlockId> live;
    for (int step = 0; step < 500; ++step) {
      if (random() % 5 < 3 || live.empty()) {
        const Bytes size = random_size(random);
        if (const auto block = reused.allocate(size, static_cast<int>(random() % 2), step)) {
          live.push_back(*block);
          run.push_back(reused.block_address(*block));
        }
      } else {
        reused.free(live.back(), StreamUse{1, step + 20});
        live.pop_back();
      }
      run.push_back(reused.stats().reserved.now);
    }
  }
  EXPECT_EQ(runs[0], runs[1]);
}

INSTANTIATE_TEST_SUITE_P(
    Options, RandomAllocations,
    ::testing::Values(Setting{"unlimited", {}}, Setting{"limited", {.limit_bytes = 600 * kMi}},
                      Setting{"max_split", {.limit_bytes = 600 * kMi, .max_split_bytes = 30 * kMi}},
                      Setting{"expandable",
                              {.limit_bytes = 600 * kMi, .expandable_segments = true}},
                      Setting{"expandable_unlimited", {.expandable_segments = true}}),
    parameter_name);

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
  return predict(shipped("llama-3-8b"), profiles::load_profile("dgx-h100", stack, set), plan)
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
