// SPDX-License-Identifier: Apache-2.0
// From what was measured to a profile that predicts it: every group fitted in turn, measured
// products kept as they are, and the record of it all.
//
// Read rows.h (many timings become one row), fit_group.h (what is fitted and what stays) and drift
// (whether a profile still holds) for the parts.
#pragma once

#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/cluster_file.h"
#include "profiles/profile.h"
#include "sim/calibrate/fit_group.h"

namespace shardwright::sim {

struct CalibrateOptions {
  double level = 0.9;  // of the half widths that prediction intervals stand on
};

struct CalibrationResult {
  std::vector<GroupFit> groups;  // those with measurements
  profiles::Profile profile;     // calibrated, with its half widths
  std::vector<profiles::MeasuredProduct> products;
  std::vector<profiles::MeasuredRow> rows;  // that were used
  std::vector<profiles::LeftOut> left_out;  // rows that the base cannot predict at all
};

/// Fits `base` to `rows` (rows_of, merged). Deterministic.
CalibrationResult calibrate(const profiles::Profile& base,
                            const std::vector<profiles::MeasuredRow>& rows,
                            const CalibrateOptions& options = {});

/// The record for the file; the caller adds date, parent and sources.
profiles::Calibration record_of(const CalibrationResult& result, const std::string& stack,
                                double level);

/// The values that moved, as entries of a cluster file's "set". `from` names what they come from:
/// "2 traces".
std::vector<profiles::SetEntry> set_of(const CalibrationResult& result, const std::string& from,
                                       const std::string& date);

// Whether a calibrated profile still describes the machine: new measurements against what it
// predicts.
//
// Per group the median of log(measured / predicted) over distinct operations is held against the
// quantiles that the profile recorded of its own errors. Operations that the profile itself was
// fitted to are held against their own times, which shows smaller changes. A median outside is
// drift: clocks, drivers, libraries or the network have changed.

struct GroupDrift {
  profiles::CostGroup group = profiles::CostGroup::kProducts;
  std::int64_t rows = 0;       // of the new measurements
  double median = 0;           // of log(measured / predicted)
  double low = 0, high = 0;    // what the profile's own errors allow
  std::int64_t same_rows = 0;  // operations that the profile knows
  double same_median = 0;      // of log(now / then)
  double same_allowed = 0;     // on both sides
  bool drifted = false;
};

struct Drift {
  std::vector<GroupDrift> groups;    // that the profile was calibrated in and that rows are of
  std::vector<std::string> changes;  // "the GPU is NVIDIA H200, not NVIDIA H100"
  bool any() const;
};

Drift drift_of(const profiles::Profile& profile, const profiles::Calibration& calibration,
               const std::vector<profiles::MeasuredRow>& rows,
               const std::vector<profiles::ObservationSource>& sources);

}  // namespace shardwright::sim
