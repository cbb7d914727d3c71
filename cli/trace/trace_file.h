// SPDX-License-Identifier: Apache-2.0
// The file that --trace writes: predicted steps as a Chrome trace, for Perfetto.
#pragma once

#include <string>

#include "sim/job.h"

namespace shardwright::cli {

/// Predicts the plans of the job, writes their steps and says so on stderr: of one rank, of a
/// pipeline one of each stage. `verb` is named as the origin. Throws Error where the file cannot be
/// written.
void write_trace_of(const std::string& path, const std::string& verb, const sim::Job& inputs);

}  // namespace shardwright::cli
