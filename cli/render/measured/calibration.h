// SPDX-License-Identifier: Apache-2.0
// What `calibrate` prints: values that moved, errors by group, what stayed and why, what was left
// out, and what to measure next; or whether a profile still holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/calibrate/calibrate.h"
#include "sim/calibrate/next_measurement.h"

namespace shardwright::cli {

struct CalibrationReport {
  const sim::CalibrationResult& result;
  const profiles::ObservationSet& set;  // sources, notes, left out, kernel time
  std::string base;
  std::string out;       // empty: not written
  std::string asked_of;  // "llama-3-8b on 8 GPUs"; empty: the measured operations
  sim::NextMeasurement next;
  std::vector<profiles::LeftOut> rows_left_out;  // by sim::rows_of
  std::vector<profiles::SetEntry> facts;
};

std::string calibration_text(const CalibrationReport& report, const Terminal& terminal);
std::string calibration_json(const CalibrationReport& report);

std::string drift_text(const sim::Drift& drift, const std::string& profile,
                       const Terminal& terminal);
std::string drift_json(const sim::Drift& drift, const std::string& profile);

}  // namespace shardwright::cli
