// SPDX-License-Identifier: Apache-2.0
#include "sim/score/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::sim {
namespace {

using profiles::LedgerRow;
using profiles::MemoryCounter;
using ::testing::HasSubstr;

LedgerRow shipped_row(const std::string& id) {
  for (const LedgerRow& row : profiles::load_ledger(profiles::shipped_ledger())) {
    if (row.id == id) return row;
  }
  ADD_FAILURE() << "no row " << id;
  return {};
}

double gib(Bytes bytes) {
  return static_cast<double>(bytes) / kGiB;
}

TEST(Validation, ScoresEachRowAgainstWhatWasMeasured) {
  LedgerRow timed = shipped_row("m001");
  LedgerRow sized = shipped_row("m111");
  const Validation result = validate({timed, sized});
  ASSERT_EQ(result.rows.size(), 2U);
  const ValidatedRow& a = result.rows[0];
  EXPECT_EQ(a.skipped, "");
  EXPECT_DOUBLE_EQ(*a.time_error, a.prediction.time.iteration_s / 0.81 - 1);
  EXPECT_FALSE(a.memory_error);
  const ValidatedRow& b = result.rows[1];
  EXPECT_FALSE(b.time_error);
  EXPECT_DOUBLE_EQ(*b.memory_error, gib(b.prediction.memory.peak_allocated_bytes) / 38.668 - 1);

  EXPECT_EQ(result.all.time.n, 1);
  EXPECT_DOUBLE_EQ(result.all.time.mape, std::abs(*a.time_error));
  EXPECT_EQ(result.all.memory.n, 1);
  EXPECT_DOUBLE_EQ(result.all.memory.worst, std::abs(*b.memory_error));
  EXPECT_EQ(result.by_source.size(), 2U);
  EXPECT_EQ(result.by_source.at("DLRover/ATorch").time.n, 0);
}

TEST(Validation, ComparesMemoryWithTheCounterThatTheRowNames) {
  LedgerRow row = shipped_row("m094");
  row.peak_gib = 30;
  std::vector<LedgerRow> rows;
  for (const MemoryCounter counter :
       {MemoryCounter::kPeakAllocated, MemoryCounter::kPeakActive, MemoryCounter::kPeakReserved}) {
    row.counter = counter;
    rows.push_back(row);
  }
  const Validation result = validate(rows);
  const MemoryPrediction& memory = result.rows[0].prediction.memory;
  EXPECT_DOUBLE_EQ(result.rows[0].predicted_peak_gib, gib(memory.peak_allocated_bytes));
  EXPECT_DOUBLE_EQ(result.rows[1].predicted_peak_gib, gib(memory.peak_active_bytes));
  EXPECT_DOUBLE_EQ(result.rows[2].predicted_peak_gib, gib(memory.peak_reserved_bytes));
  EXPECT_LE(result.rows[0].predicted_peak_gib, result.rows[1].predicted_peak_gib);
  EXPECT_LT(result.rows[1].predicted_peak_gib, result.rows[2].predicted_peak_gib);
  EXPECT_DOUBLE_EQ(*result.rows[2].memory_error, result.rows[2].predicted_peak_gib / 30 - 1);
}

TEST(Validation, CountsPeaksInsideTheirInterval) {
  LedgerRow row = shipped_row("m094");
  const MemoryPrediction memory = validate({row}).rows[0].prediction.memory;
  const double peak = gib(memory.peak_reserved_bytes);
  const auto width = [&](std::size_t end) {
    return std::log(static_cast<double>(memory.interval_bytes[end] - memory.runtime_bytes) /
                    static_cast<double>(memory.peak_reserved_bytes));
  };
  const double less = -width(0), more = width(1);
  ASSERT_GT(less, 0.01);
  ASSERT_GT(more, 0.01);
  row.counter = MemoryCounter::kPeakReserved;
  std::vector<LedgerRow> rows;
  for (const double log : {-1.01 * less, -0.99 * less, 0.99 * more, 1.01 * more}) {
    row.peak_gib = peak * std::exp(log);
    rows.push_back(row);
  }
  const Validation result = validate(rows);
  EXPECT_FALSE(result.rows[0].inside_memory_interval);
  EXPECT_TRUE(result.rows[1].inside_memory_interval);
  EXPECT_TRUE(result.rows[2].inside_memory_interval);
  EXPECT_FALSE(result.rows[3].inside_memory_interval);
  EXPECT_EQ(result.all.inside_memory_interval, 2);
}

TEST(Validation, SkipsWhatCannotBePredictedAndCountsWhy) {
  LedgerRow impossible = shipped_row("m001");
  impossible.plan.gpus = 60;
  const Validation result = validate({impossible, shipped_row("m002")});
  EXPECT_THAT(result.rows[0].skipped, HasSubstr("gpus is 60, expected a multiple of the 8 GPUs"));
  EXPECT_FALSE(result.rows[0].time_error);
  EXPECT_EQ(result.rows[1].skipped, "");
  EXPECT_EQ(result.all.skipped, 1);
  EXPECT_EQ(result.all.predicted, 1);
  EXPECT_EQ(result.all.time.n, 1);
  EXPECT_EQ(result.skipped_because.at(result.rows[0].skipped), 1);
}

// A run that died for want of memory is predicted right when the plan does not fit, and only then.
TEST(Validation, JudgesOutcomesByWhatFits) {
  LedgerRow small = shipped_row("m001");
  LedgerRow large = shipped_row("m025");  // 70B
  large.plan.gpus = 8;
  large.plan.shard_group = 0;
  std::vector<LedgerRow> rows{small, small, large, large};
  rows[1].out_of_memory = rows[3].out_of_memory = true;
  const Validation result = validate(rows);
  EXPECT_TRUE(result.rows[0].prediction.memory.fits);
  EXPECT_FALSE(result.rows[2].prediction.memory.fits);
  EXPECT_TRUE(result.rows[0].outcome_right);
  EXPECT_FALSE(result.rows[1].outcome_right);
  EXPECT_FALSE(result.rows[2].outcome_right);
  EXPECT_TRUE(result.rows[3].outcome_right);
  EXPECT_EQ(result.all.wrong_outcomes, 2);
}

TEST(Validation, PairsRowsThatDifferOnlyInStrategy) {
  const Validation result =
      validate({shipped_row("m002"), shipped_row("m001"), shipped_row("m003")});
  ASSERT_EQ(result.speedups.size(), 1U);
  const SpeedupPair& pair = result.speedups[0];
  EXPECT_EQ(pair.yafsdp, 1U);
  EXPECT_EQ(pair.fsdp1, 0U);
  EXPECT_DOUBLE_EQ(pair.measured, 1 - 0.81 / 0.90);
  EXPECT_DOUBLE_EQ(pair.predicted, 1 - result.rows[1].prediction.time.iteration_s /
                                           result.rows[0].prediction.time.iteration_s);
}

TEST(Validation, DoesNotDependOnTheNumberOfThreads) {
  std::vector<LedgerRow> rows;
  for (const char* id : {"m001", "m018", "m040", "m091", "m106", "m113", "m115", "m119"}) {
    rows.push_back(shipped_row(id));
  }
  ValidationOptions one, many;
  one.threads = 1;
  many.threads = 5;
  std::int64_t reported = 0;
  many.progress = [&](std::int64_t done) { EXPECT_EQ(done, ++reported); };
  const Validation a = validate(rows, one);
  const Validation b = validate(rows, many);
  EXPECT_EQ(reported, 8);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(a.rows[i].row.id, b.rows[i].row.id);
    EXPECT_EQ(a.rows[i].prediction.time.iteration_s, b.rows[i].prediction.time.iteration_s);
    EXPECT_EQ(a.rows[i].predicted_peak_gib, b.rows[i].predicted_peak_gib);
  }
  EXPECT_EQ(a.all.time.mape, b.all.time.mape);
}

TEST(Validation, AppliesOverridesToEveryRow) {
  ValidationOptions slower;
  slower.overrides = {"cluster.nic_efficiency=0.5"};
  const std::vector<LedgerRow> rows{shipped_row("m017"), shipped_row("m023")};
  const Validation before = validate(rows);
  const Validation after = validate(rows, slower);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GT(after.rows[i].prediction.time.iteration_s,
              1.2 * before.rows[i].prediction.time.iteration_s);
  }
  slower.overrides = {"cluster.nic_speed=1"};
  EXPECT_THROW(validate(rows, slower), Error);
}

TEST(Validation, OfNothingIsEmpty) {
  const Validation result = validate({});
  EXPECT_EQ(result.all.time.n, 0);
  EXPECT_EQ(result.all.predicted, 0);
}

}  // namespace
}  // namespace shardwright::sim
