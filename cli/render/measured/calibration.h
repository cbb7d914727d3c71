// SPDX-License-Identifier: Apache-2.0
// What `calibrate` prints: values that moved, errors by group, what stayed and why, and what was
// left out; or whether a profile still holds.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/import/step_log.h"
#include "sim/calibrate/anchor.h"
#include "sim/calibrate/calibrate.h"
#include "sim/job.h"

namespace shardwright::cli {

/// "4.2 %"; "-" where nothing was held against anything.
std::string median_error(const profiles::ErrorSummary& errors);

struct CalibrationReport {
  const sim::CalibrationResult& result;
  const profiles::ObservationSet& set;  // sources, notes, left out, kernel time
  std::string base;
  std::string out;                               // empty: not written
  std::vector<profiles::LeftOut> rows_left_out;  // by sim::rows_of
  std::vector<profiles::SetEntry> facts;
};

std::string calibration_text(const CalibrationReport& report, const Terminal& terminal);
std::string calibration_json(const CalibrationReport& report);

std::string drift_text(const sim::Drift& drift, const std::string& profile,
                       const Terminal& terminal);
std::string drift_json(const sim::Drift& drift, const std::string& profile);

// What one measured step moves, and where it carries to, as text and as JSON.

/// The measured plan on another number of GPUs: with the base's values and with those that moved.
struct CarriedSize {
  sim::Prediction before, after;
};

struct AnchorReport {
  const sim::Job& job;
  sim::AnchorFit fit;
  std::string log;  // what kind it is; empty: the time was given
  profiles::MedianStep measured;
  std::vector<CarriedSize> sizes;
  std::string out;  // the file that was written; empty: none
};

std::string anchor_text(const AnchorReport& report, const Terminal& terminal);
nlohmann::ordered_json anchor_json(const AnchorReport& report);

std::string anchored_series_text(const std::vector<sim::AnchoredSeries>& series,
                                 const Terminal& terminal);
nlohmann::ordered_json anchored_series_json(const std::vector<sim::AnchoredSeries>& series);

}  // namespace shardwright::cli
