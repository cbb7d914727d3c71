// SPDX-License-Identifier: Apache-2.0
// The headline: how far the predictions of published runs are off. What breaks here is the reason
// to use the project, so a bound is loosened only with a reason that a release note can print.
#include "tests/guard/published_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "profiles/data_dir.h"
#include "profiles/step_parameters.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/csv.h"
#include "sim/fit/ledger_model.h"
#include "sim/score/layer_period.h"

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

// Fitting without each run again takes a minute (validate --leave-one-out), so the errors are read
// from what the last fit wrote; the tests below show that the record belongs to this program.
TEST(HeldOut, ErrorsAreWhatTheReadmePromises) {
  const std::vector<HeldOutRun> runs = profiles::load_held_out_runs(profiles::shipped_residuals());
  ASSERT_EQ(runs.size(), 202U);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error, "YaFSDP README"), 0.035);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error), 0.045);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error_source_out, "YaFSDP README"), 0.06);
  EXPECT_LE(mean_error(runs, &HeldOutRun::log_error_source_out), 0.065);
}

class Refit : public ::testing::Test {
 protected:
  /// log(predicted / measured) of row `i`, the constants fitted without the rows that `leave_out`
  /// names.
  template <typename LeaveOut>
  std::vector<double> fit_without(const LeaveOut& leave_out) const {
    std::vector<double> weights = model_.weights();
    for (std::size_t i = 0; i < model_.size(); ++i) {
      if (leave_out(i)) weights[i] = 0;
    }
    return refit_robust(model_.problem(0), weights, full_).x;
  }
  double log_error(std::size_t i, const std::vector<double>& x) const {
    return std::log(model_.predict(i, sim::values_of(x)).time.iteration_s /
                    *model_.row(i).iteration_s);
  }

  // Recorded are five decimals.
  static constexpr double kTolerance = 1e-4;
  const std::vector<profiles::LedgerRow> rows_ = profiles::load_ledger(profiles::shipped_ledger());
  const profiles::StepParameters steps_ =
      profiles::load_step_parameters(profiles::shipped_step_parameters());
  const std::vector<HeldOutRun> recorded_ =
      profiles::load_held_out_runs(profiles::shipped_residuals());
  const sim::LedgerModel model_{rows_, steps_.parameters};
  const sim::RobustFit full_ = fit_robust(model_.problem(0), model_.weights());
};

TEST_F(Refit, FindsTheConstantsThatShip) {
  const std::vector<double> values = sim::values_of(fit_without([](std::size_t) { return false; }));
  ASSERT_EQ(values.size(), steps_.parameters.size());
  for (std::size_t j = 0; j < values.size(); ++j) {
    ASSERT_TRUE(model_.parameters()[j]->fitted.has_value());
    EXPECT_NEAR(values[j] / model_.parameters()[j]->fitted->value, 1, 2e-4)
        << model_.parameters()[j]->name;
  }
}

TEST_F(Refit, WithoutARunFindsWhatIsRecordedOfIt) {
  ASSERT_EQ(recorded_.size(), model_.size());
  for (std::size_t out = 3; out < model_.size(); out += 23) {
    const std::vector<double> x = fit_without([&](std::size_t i) { return i == out; });
    EXPECT_EQ(recorded_[out].id, model_.row(out).id);
    EXPECT_NEAR(log_error(out, x), recorded_[out].log_error, kTolerance) << recorded_[out].id;
  }
}

TEST_F(Refit, WithoutASourceFindsWhatIsRecordedOfItsRuns) {
  ASSERT_EQ(recorded_.size(), model_.size());
  std::set<std::string> sources;
  for (const HeldOutRun& run : recorded_) sources.insert(run.source);
  ASSERT_EQ(sources.size(), 10U);
  for (const std::string& source : sources) {
    const std::vector<double> x =
        fit_without([&](std::size_t i) { return model_.row(i).source == source; });
    for (std::size_t i = 0; i < model_.size(); ++i) {
      if (model_.row(i).source != source) continue;
      EXPECT_NEAR(log_error(i, x), recorded_[i].log_error_source_out, kTolerance)
          << recorded_[i].id;
    }
  }
}

}  // namespace
}  // namespace shardwright::guard
