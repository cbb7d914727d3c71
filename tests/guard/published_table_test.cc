// SPDX-License-Identifier: Apache-2.0
// The headline: how far the predictions of published runs are off. What breaks here is the reason
// to use the project, so a bound is loosened only with a reason that a release note can print.
#include "tests/guard/published_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "profiles/data_file.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/csv.h"
#include "sim/score/validation.h"

namespace shardwright::guard {
namespace {

using profiles::HeldOutRun;
using ::testing::IsEmpty;

TEST(PublishedTable, KeepsWhatTheReadmePromises) {
  const PublishedTable table = Ledger().table();
  ASSERT_EQ(table.all.n, 202);
  ASSERT_EQ(table.speedups, 16);
  EXPECT_THAT(broken_promises(table), IsEmpty());
}

TEST(PublishedTable, IsAsRecorded) {
  EXPECT_THAT(departures_from_record(Ledger().table()), IsEmpty())
      << "after an intended change: scripts/record_published_errors";
}

TEST(PublishedTable, BackwardOfOneLayerTakesWhatTimelinesShow) {
  const std::vector<sim::LayerPeriod> periods = sim::predict_layer_periods(
      CsvTable::load(profiles::data_dir() / "published" / "layer_periods.csv"));
  ASSERT_EQ(periods.size(), 2U);
  for (const sim::LayerPeriod& period : periods) {
    EXPECT_NEAR(period.predicted_s / period.measured_s, 1, 0.06) << period.row.id;
  }
}

/// Mean of |predicted / measured - 1| over the runs of `source`, or over all.
double mean_error(const std::vector<HeldOutRun>& runs, double HeldOutRun::*log_error,
                  const std::string& source = {}) {
  double sum = 0;
  std::int64_t n = 0;
  for (const HeldOutRun& run : runs) {
    if (!source.empty() && run.source != source) continue;
    sum += std::abs(std::expm1(run.*log_error));
    ++n;
  }
  return n > 0 ? sum / static_cast<double>(n) : std::nan("");
}

// As the last fit recorded them (python3 -m profiles.research steps); the night fits again.
TEST(HeldOut, ErrorsAreWhatTheReadmePromises) {
  const std::vector<HeldOutRun> runs = profiles::load_held_out(profiles::shipped_residuals()).runs;
  ASSERT_EQ(runs.size(), 202U);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error, "YaFSDP README"), 0.036);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error), 0.035);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error_source_out, "YaFSDP README"), 0.058);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error_source_out), 0.05);
}

}  // namespace
}  // namespace shardwright::guard
