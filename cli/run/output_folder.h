// SPDX-License-Identifier: Apache-2.0
// The folder of a run: one writer at a time, nothing finished overwritten unasked, and every path
// that the run is going to write tried before its first step.
#pragma once

#include <filesystem>
#include <string>

#include "cli/run/options.h"

namespace shardwright::cli {

/// Held by the process that writes into a run's folder; the system lets go when the process ends,
/// however that happens. The file .lock, which stays, names the process.
class OutputLock {
 public:
  /// Makes the folder where it is not there. Throws Error naming the process that holds it. Where
  /// the file system knows no locks, none is held.
  explicit OutputLock(const std::filesystem::path& folder);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  int fd_ = -1;
};

/// Throws Error where a trace that is asked for is another file of the run, or one that a setting
/// names, and where it cannot be written outside the run's folder, which need not be there yet:
/// before anything is written.
void try_trace(const RunOptions& options, const RunSettings& settings);

/// Throws Error when checkpoints/ or model/ is a link: of the folder that --out names everything is
/// the run's own, wherever that folder itself may lead.
void require_own_folders(const RunOptions& options);

/// Throws Error when the folder holds a finished run that this one would overwrite without having
/// been told to.
void require_room(const RunOptions& options);

/// Of a run that begins anew, whose ranks have agreed.
void remove_finished_model(const RunOptions& options);

/// Writes to every place that the run is going to write to, and takes it back. Throws Error.
void try_outputs(const RunOptions& options);

/// Where the final model goes.
std::filesystem::path model_folder(const RunOptions& options);

}  // namespace shardwright::cli
