// SPDX-License-Identifier: Apache-2.0
// Writing a calibrated profile: a cluster file that `--cluster` takes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profiles/cluster_file.h"
#include "sim/calibrate/calibrate.h"

namespace shardwright::sim {

struct CalibratedFile {
  std::string base;   // the name or path that was calibrated
  std::string stack;  // that the measured operations ran on; empty: none
  std::string date;   // YYYY-MM-DD
  std::vector<profiles::ObservationSource> sources;
  std::vector<profiles::SetEntry> facts;  // set beside what was fitted (adopt_processor)
  ProductChoices product_choices;         // as they were timed
  double level = 0.9;
  std::vector<profiles::AnchorStep> anchors;  // whole steps that values moved for
};

/// Today, in UTC.
std::string today();

/// Writes the whole file or nothing, and reads it back: a file that `predict` would refuse is never
/// left. Throws Error.
void write_calibrated(const std::filesystem::path& out, const CalibratedFile& file,
                      const CalibrationResult& result);

}  // namespace shardwright::sim
