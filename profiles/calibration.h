// SPDX-License-Identifier: Apache-2.0
// What a calibrated profile knows of its own making: from which files it was fitted, what moved and
// how far it is off.
//
// A calibrated profile is a cluster file with a "base" and a "set" of values by path
// (cluster_file.h), and beside them "measured_products" (GEMMs that were timed: they win
// over the formula) and "calibration", which this file reads and writes. The operations that were
// fitted to are kept, one row for each distinct one, so that profiles can be merged by fitting to
// the rows of all, and so that a later trace can be held against them. Schema 1.1; a cluster file
// of 1.0 is one without a calibration.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/gpu_cost.h"
#include "profiles/gpu_params.h"
#include "profiles/observation.h"

namespace shardwright {
class JsonReader;
}

namespace shardwright::profiles {

/// All timings of one distinct operation: equal work, group and stretch of contention.
struct MeasuredRow {
  Observation operation;  // its `seconds` is the row's time: a median, see sim/calibrate/rows.h
  double spread = 0;      // standard deviation of the logarithms of single timings, robust
  std::int64_t count = 0;
  /// The work was lowered with a stack: its kernels are that stack's, with the stack's
  /// efficiencies.
  bool lowered = false;
};

/// Quantiles of log(measured / predicted) over rows that are held out: 5, 25, 50, 75, 95 %.
using ErrorQuantiles = std::array<double, 5>;

/// The widest interval that is written, of logarithms: a factor of 22,000 says that nothing is
/// known.
inline constexpr double kWidestCalibration = 10;

struct CalibratedGroup {
  CostGroup group = CostGroup::kProducts;
  std::int64_t rows = 0;          // distinct operations
  std::int64_t observations = 0;  // single timings
  ErrorSummary before;            // by the parent's values
  ErrorSummary in_sample;
  ErrorSummary held_out;
  ErrorQuantiles quantiles{};
  /// The time that a step spends in this group is within a factor e^+-h of its prediction, at the
  /// level of the calibration; 0: not known (too few rows).
  double half_width = 0;
};

struct CalibratedValue {
  std::string path;  // "cost.gemm.e"
  double before = 0, after = 0;
  double low = 0, high = 0;  // 95 % interval
  std::int64_t rows = 0;
};

/// A whole step that was measured, and the values that moved for it (sim/calibrate/anchor.h): of
/// other runs of that model with that stack more is known than of any other.
struct AnchorStep {
  std::string model;
  std::int64_t gpus = 1;
  std::string plan;        // in words
  double step_s = 0;       // measured
  double predicted_s = 0;  // by the parent's values
  double carried = 0;      // of the logarithm of their ratio, what the values moved for
  std::int64_t steps = 1;  // that were timed
};

struct Calibration {
  std::string date;    // YYYY-MM-DD
  std::string parent;  // name or path of the base
  std::string stack;   // values stack.* hold for this stack only; empty: for every one
  double level = 0.9;  // of half widths
  std::vector<ObservationSource> sources;  // without step_s
  std::vector<CalibratedGroup> groups;
  std::vector<CalibratedValue> values;
  std::vector<MeasuredRow> rows;
  std::vector<AnchorStep> anchors;

  const CalibratedGroup* find(CostGroup group) const;
};

/// Reads "calibration" and "measured_products". Throws Error.
Calibration read_calibration(const JsonReader& from);
std::vector<MeasuredProduct> read_measured_products(const std::vector<JsonReader>& from);

/// JSON text of the two members.
std::string to_json(const Calibration& calibration);
std::string to_json(const std::vector<MeasuredProduct>& products);

}  // namespace shardwright::profiles
