// SPDX-License-Identifier: Apache-2.0
// Where persistent memory lies: every place inside its tensor, what must not overlap apart, shares
// that make up the whole.
#include "sim/core/placement.h"

#include "sim/core/arena.h"
#include "tests/core/common.h"

namespace shardwright {
namespace {

constexpr std::int64_t kRanks = 4;

/// Three layers of 40 elements between an embedding of 100 and a head of 104, for four ranks.
Schedule schedule_of(const ShardingFacts& facts, bool tied = false, bool casts = true) {
  Schedule schedule;
  schedule.layers = 3;
  schedule.group(CommGroup::kShard) = {kRanks, 1};
  schedule.unit_sizes = {100, 40, tied ? 0 : 104, facts.separates_norms ? 12 : 0};
  schedule.sharding = facts;
  if (casts) schedule.ops.emplace_back().kind = OpKind::kCastGradient;
  list_persistent(schedule);
  return schedule;
}

ShardingFacts sharded(std::int32_t weights) {
  ShardingFacts facts;
  facts.shards = Sharded::kParameters;
  facts.keeps_parameters = facts.keeps_sums = true;
  facts.weights.count = weights;
  facts.gradients.count = 2;
  return facts;
}

Bytes bytes_of_kind(const Schedule& schedule, Persistent kind) {
  for (const PersistentTensor& tensor : schedule.persistent) {
    if (tensor.kind == kind) return tensor.bytes;
  }
  return 0;
}

/// Whether all of `array` lies in `kind`.
bool inside(const PlacedArray& array, const Schedule& schedule, const Placement& placement,
            Persistent kind) {
  const Bytes begin = placement.offset(kind);
  return begin >= 0 && array.offset >= begin &&
         array.offset + array.size * bytes_of(array.dtype) <= begin + bytes_of_kind(schedule, kind);
}

TEST(Placement, ListsWhatAStrategyKeeps) {
  const Schedule schedule = schedule_of(sharded(2));
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kMaster), 4 * 324 / kRanks);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kMoments), 8 * 324 / kRanks);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kShardedParameters), 2 * 324 / kRanks);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kShardedGradients), 4 * 324 / kRanks);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kRotatingWeights), 2 * 2 * 104);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kRotatingGradients), 2 * 2 * 104);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kReductionBuffer), 4 * 104);
  EXPECT_EQ(schedule.persistent.size(), 7u);
  Bytes aligned = 0;
  for (const PersistentTensor& tensor : schedule.persistent)
    aligned += round_up(tensor.bytes, kArenaAlignment);
  EXPECT_EQ(persistent_bytes(schedule), aligned);
  EXPECT_EQ(Placement(schedule, 0).size_bytes(), aligned);
}

// What ranks gather and reduce lies in front, at one offset on all of them.
TEST(Placement, WhatCollectivesTouchLiesInFront) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    ShardingFacts facts = sharded(2);
    facts.parameter_dtype = dtype;
    facts.workspace_bytes = 1000;
    const Schedule schedule = schedule_of(facts);
    const Placement first(schedule, 0), last(schedule, kRanks - 1);
    const Bytes front = first.collective_bytes();
    const auto is_in_front = [&](const PlacedArray& array) {
      return array.offset + array.size * bytes_of(array.dtype) <= front;
    };
    for (std::int32_t u = 0; u <= schedule.head_unit(); ++u) {
      const UnitPlacement& unit = first.unit(u);
      for (const PlacedArray& array :
           {unit.parameters, unit.gradient, unit.reduced, unit.owned_source, unit.gradient_sum})
        EXPECT_TRUE(is_in_front(array)) << u;
      EXPECT_EQ(is_in_front(unit.owned_master), !facts.has_compute_copy());
      EXPECT_GE(unit.first_moment.offset, front);
      EXPECT_EQ(unit.parameters, last.unit(u).parameters);
      EXPECT_EQ(unit.reduced, last.unit(u).reduced);
    }
    EXPECT_GE(first.offset(Persistent::kWorkspace), front);
    EXPECT_LT(front, first.size_bytes());
  }
}

TEST(Placement, UnitsTakeTurnsInRotatingBuffers) {
  const Schedule schedule = schedule_of(sharded(3));
  const Placement placement(schedule, 1);
  for (std::int32_t u = 0; u <= schedule.head_unit(); ++u) {
    const UnitPlacement& unit = placement.unit(u);
    EXPECT_TRUE(inside(unit.parameters, schedule, placement, Persistent::kRotatingWeights)) << u;
    EXPECT_TRUE(inside(unit.gradient, schedule, placement, Persistent::kRotatingGradients)) << u;
    EXPECT_EQ(unit.parameters.offset, placement.unit(u % 3).parameters.offset) << u;
    EXPECT_EQ(unit.gradient.offset, placement.unit(u % 2).gradient.offset) << u;
  }
  EXPECT_NE(placement.unit(0).parameters.offset, placement.unit(1).parameters.offset);
  EXPECT_NE(placement.unit(1).parameters.offset, placement.unit(2).parameters.offset);
}

TEST(Placement, ATiedEmbeddingAndNormsApartOutliveTheRotation) {
  ShardingFacts facts = sharded(2);
  facts.separates_norms = true;
  const Schedule schedule = schedule_of(facts, true);
  const Placement placement(schedule, 0);
  EXPECT_TRUE(
      inside(placement.unit(0).parameters, schedule, placement, Persistent::kTiedEmbeddingWeights));
  EXPECT_TRUE(
      inside(placement.unit(0).gradient, schedule, placement, Persistent::kTiedEmbeddingGradients));
  const UnitPlacement& norms = placement.unit(schedule.norm_unit());
  EXPECT_TRUE(inside(norms.parameters, schedule, placement, Persistent::kNormWeights));
  EXPECT_TRUE(inside(norms.gradient, schedule, placement, Persistent::kNormGradients));
  // The rotation has room for a layer, no more.
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kRotatingWeights), 2 * 2 * 40);
}

TEST(Placement, SharesOfAllRanksMakeUpTheWhole) {
  ShardingFacts facts;
  facts.shards = Sharded::kOptimizer;
  facts.keeps_parameters = facts.keeps_sums = true;
  facts.gradients.count = 2;
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    facts.parameter_dtype = dtype;
    const Schedule schedule = schedule_of(facts);
    for (std::int32_t u = 0; u <= schedule.head_unit(); ++u) {
      Bytes next = Placement(schedule, 0).unit(u).parameters.offset;
      for (std::int64_t rank = 0; rank < kRanks; ++rank) {
        const UnitPlacement unit = Placement(schedule, rank).unit(u);
        EXPECT_EQ(unit.owned_source.offset, next);
        next += unit.owned_source.size * bytes_of(dtype);
        // Without a copy the optimizer updates the own part of the whole.
        EXPECT_EQ(unit.owned_master == unit.owned_source, dtype == DType::kFp32);
      }
      const PlacedArray whole = Placement(schedule, 0).unit(u).parameters;
      EXPECT_EQ(next, whole.offset + whole.size * bytes_of(dtype));
    }
  }
}

// Without an operation that casts, backward writes what is reduced.
TEST(Placement, GradientsInTheTypeOfTheReductionNeedNoOtherBuffer) {
  const Schedule schedule = schedule_of(sharded(2), false, false);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kRotatingGradients), 2 * 4 * 104);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kReductionBuffer), 0);
  const UnitPlacement unit = Placement(schedule, 0).unit(1);
  EXPECT_EQ(unit.gradient.dtype, DType::kFp32);
  EXPECT_EQ(unit.reduced, unit.gradient);
}

// Backward adds to sums of layers in place; what others write is put together elsewhere first.
TEST(Placement, BackwardMayWriteSumsOfWholeGradients) {
  ShardingFacts facts;
  facts.shards = Sharded::kNothing;
  facts.keeps_parameters = facts.keeps_sums = facts.sums_in_backward = true;
  facts.gradients.count = 1;
  for (const bool tied : {false, true}) {
    const Schedule schedule = schedule_of(facts, tied, false);
    const Placement placement(schedule, 0);
    EXPECT_EQ(bytes_of_kind(schedule, Persistent::kRotatingGradients), tied ? 0 : 4 * 104);
    EXPECT_EQ(bytes_of_kind(schedule, Persistent::kTiedEmbeddingGradients), tied ? 4 * 100 : 0);
    for (std::int32_t u = 0; u <= schedule.head_unit(); ++u) {
      const UnitPlacement& unit = placement.unit(u);
      if (unit.reduced.size == 0) continue;  // a tied head
      EXPECT_EQ(unit.first_gradient, unit.reduced);
      EXPECT_EQ(unit.gradient == unit.reduced, u > 0 && u < schedule.head_unit()) << u;
    }
  }
}

// The master is followed by the rest of the whole, so both are one array.
TEST(Placement, AMasterInTheWholeParametersNeedsNoPlaceOfItsOwn) {
  ShardingFacts facts;
  facts.shards = Sharded::kGradients;
  facts.parameter_dtype = DType::kFp32;
  facts.keeps_parameters = facts.keeps_sums = true;
  facts.gradients.count = 2;
  const Schedule schedule = schedule_of(facts);
  const Placement placement(schedule, 0);
  EXPECT_EQ(bytes_of_kind(schedule, Persistent::kMaster) +
                bytes_of_kind(schedule, Persistent::kWholeParameters),
            4 * 324);
  EXPECT_EQ(placement.offset(Persistent::kMaster), 0);
  EXPECT_EQ(placement.unit(0).parameters.offset, 0);
  const PlacedArray& head = placement.unit(schedule.head_unit()).parameters;
  EXPECT_LE(head.offset + 4 * head.size,
            placement.offset(Persistent::kWholeParameters) +
                round_up(bytes_of_kind(schedule, Persistent::kWholeParameters), kArenaAlignment));
  EXPECT_GE(placement.offset(Persistent::kMoments), head.offset + 4 * head.size);
}

TEST(RankGroup, NumbersGroupsOfNeighboursAndOfStrides) {
  const RankGroup neighbours{4, 1}, apart{2, 4};
  EXPECT_EQ(neighbours.number_of(3), 0);
  EXPECT_EQ(neighbours.number_of(4), 1);
  std::set<std::int64_t> numbers;
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(apart.number_of(rank), rank % 4);
    numbers.insert(neighbours.number_of(rank));
  }
  EXPECT_EQ(numbers.size(), 2u);
  EXPECT_EQ(neighbours.members_per_node(8), 4);
  EXPECT_EQ(neighbours.members_per_node(2), 2);
  EXPECT_EQ(apart.members_per_node(8), 2);
  EXPECT_EQ(apart.members_per_node(4), 1);
}

}  // namespace
}  // namespace shardwright
