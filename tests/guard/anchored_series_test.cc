// SPDX-License-Identifier: Apache-2.0
// How far one measured step carries over published series: N nodes predicted from the fewest.
// Bounds stand a little above what sim/calibrate/README.md shows.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "profiles/data_file.h"
#include "profiles/ledger/ledger.h"
#include "sim/calibrate/anchor.h"

namespace shardwright::guard {
namespace {

struct Carried {
  double runs = 0, error_before = 0, error = 0, width_before = 0, width = 0, inside = 0;
};

Carried carried(const std::string& ledger) {
  Carried sums;
  for (const sim::AnchoredSeries& series :
       sim::anchored_series(profiles::load_ledger(profiles::data_dir() / "published" / ledger))) {
    for (const sim::AnchoredRun& run : series.runs) {
      sums.runs += 1;
      sums.error_before += std::abs(run.before_error);
      sums.error += std::abs(run.error);
      sums.width_before += run.before_half_width;
      sums.width += run.half_width;
      sums.inside += run.inside;
    }
  }
  return sums;
}

TEST(AnchoredSeries, DataParallelRunsAreNearerAndTheirIntervalsNarrower) {
  const Carried all = carried("ledger.csv");
  EXPECT_GE(all.runs, 35);
  EXPECT_LT(all.error, all.error_before);
  EXPECT_LT(all.width, 0.8 * all.width_before);
  EXPECT_GE(all.inside, 0.9 * all.runs);
}

TEST(AnchoredSeries, ModelParallelRunsStayInsideNarrowerIntervals) {
  const Carried all = carried("parallel.csv");
  EXPECT_GE(all.runs, 150);
  EXPECT_LT(all.error, all.error_before);
  EXPECT_LT(all.width, 0.9 * all.width_before);
  EXPECT_GE(all.inside, 0.88 * all.runs);
}

}  // namespace
}  // namespace shardwright::guard
