// SPDX-License-Identifier: Apache-2.0
#include "sim/score/layer_period.h"

#include <gtest/gtest.h>

#include <cmath>

#include "profiles/data_dir.h"
#include "sim/core/base/error.h"

namespace shardwright::sim {
namespace {

/// Backward over `layers` units, two kernels a layer, as a schedule of one block.
Schedule backward_of(std::int64_t layers, std::int32_t micro_steps) {
  Schedule schedule;
  schedule.streams = {{.name = "compute"}};
  Op op;
  op.phase = Phase::kBackward;
  op.work.kind = WorkKind::kGemm;
  schedule.ops = {op, op};
  schedule.blocks = {{.op_count = 2,
                      .first_unit = static_cast<std::int32_t>(layers),
                      .unit_step = -1,
                      .repeats = static_cast<std::int32_t>(layers),
                      .phase = Phase::kBackward}};
  schedule.sections = {{.block_count = 1, .repeats = micro_steps}};
  schedule.layers = layers;
  return schedule;
}

// Kernels of 3 and 4 ns with a gap of 2 ns after every layer make a period of 9 ns, whatever the
// first micro-batch did.
TEST(LayerPeriod, IsTheDistanceBetweenNeighboursInTheLastMicroStep) {
  const Schedule schedule = backward_of(8, 2);
  Timeline timeline;
  Nanoseconds now = 0;
  for (OpId id = 0; id < 32; ++id) {
    const bool first = id % 2 == 0;
    const Nanoseconds length = first ? 3 : 4;
    timeline.spans.push_back({.id = id, .begin_ns = now, .end_ns = now + length});
    now += length + (first ? 0 : 2) + (id < 16 ? 50 : 0);
  }
  EXPECT_NEAR(backward_layer_period_s(schedule, timeline), 9e-9, 1e-15);
}

TEST(LayerPeriod, OfAShallowModelIsZero) {
  EXPECT_EQ(backward_layer_period_s(backward_of(1, 1), {}), 0);
}

// The two published pictures: 52 ms for YaFSDP and 74 ms for FSDP.
TEST(LayerPeriod, OfThePublishedTimelinesIsWithinSixPercent) {
  const auto table = CsvTable::load(profiles::data_dir() / "published" / "layer_periods.csv");
  const std::vector<LayerPeriod> periods = predict_layer_periods(table);
  ASSERT_EQ(periods.size(), 2U);
  for (const LayerPeriod& period : periods) {
    EXPECT_LT(std::abs(period.predicted_s / period.measured_s - 1), 0.06) << period.row.id;
  }
}

TEST(LayerPeriod, NeedsItsColumn) {
  const auto ledger = CsvTable::load(profiles::shipped_ledger());
  EXPECT_THROW(predict_layer_periods(ledger), Error);
}

}  // namespace
}  // namespace shardwright::sim
