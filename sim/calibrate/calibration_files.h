// SPDX-License-Identifier: Apache-2.0
// From files to a calibration and back: which base they belong to, which stack ran, what is
// merged. The policy of `calibrate`; the fit itself is calibrate.h.
//
// A measurement moves the base that it was taken on. Without a word the base is that of the
// profiles to merge, or the generic processor for own traces of one; what was recorded on another
// GPU than the base's is refused, by counts where a file has them and by names where it has not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "profiles/cluster_file.h"
#include "profiles/import/import_observations.h"
#include "profiles/profile.h"
#include "sim/calibrate/calibrate.h"
#include "sim/core/chrome_trace.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

// Writing a calibrated profile: a cluster file that `--cluster` takes.

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

// Traces and logs of any known kind as one set of observations.
//
// Own traces are read with the plan they carry (sim/trace/observations.h), all others by
// profiles/import. A trace's operations on a processor also say what the processor is: its cores
// and memory replace those of a generic profile.

struct GatheredObservations {
  profiles::ObservationSet set;
  std::optional<TraceIdentity> identity;  // of the first own trace
};

/// Throws Error as the importers do.
GatheredObservations gather(const std::vector<std::filesystem::path>& files,
                            const profiles::ImportOptions& options = {});

/// Appends `more`, its sources and instances numbered on.
void append(profiles::ObservationSet& set, profiles::ObservationSet more);

/// Where `profile` is of a processor and the sources say how many cores it has: sets them, its
/// memory, and rates in proportion to the cores. Returns what was set, as entries of a cluster
/// file.
std::vector<profiles::SetEntry> adopt_processor(
    const std::vector<profiles::ObservationSource>& sources, const std::string& date,
    profiles::Profile& profile);

/// The stack of traces that this program did not write, unless another is named.
inline constexpr const char* kForeignStack = "torch-eager";

struct CalibrationRequest {
  std::vector<std::filesystem::path> files;   // traces and logs
  std::vector<std::string> merge;             // calibrated profiles
  std::optional<std::string> base;            // a cluster's name or file
  std::optional<std::string> stack;           // the software that was traced
  std::optional<Model> model;                 // what was trained, for traces that do not say
  std::optional<std::int64_t> gpus_per_node;  // of the traced job; of the base, unless given
  bool force = false;                         // also of a GPU that no profile names
};

struct FileCalibration {
  CalibratedFile file;
  GatheredObservations gathered;
  CalibrationResult result;
  std::vector<profiles::LeftOut> rows_left_out;  // by rows_of
};

/// Throws Error when nothing can be fitted, or the files do not belong together.
FileCalibration calibrate_files(const CalibrationRequest& request);

/// Whether the profile `name` still holds, by the files of the request.
Drift drift_of_files(const CalibrationRequest& request, const std::string& name);

}  // namespace shardwright::sim
