// SPDX-License-Identifier: Apache-2.0
// A step for the pages that draw it (cli/page/timeline.js): of one rank, of a pipeline of one of
// each stage. What is too short to be seen is drawn together, except in one layer of the middle
// forward and backward; so a step of millions of operations stays some hundred kilobytes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/job.h"
#include "sim/trace/step_trace.h"

namespace shardwright::cli {

/// The step of median length of the trace's first rank; of a pipeline the passes of every stage and
/// the operations of the stage in the middle. All times in nanoseconds from the step's begin:
/// {"end_ns", "operations": [[phase, kind, name], ...], "processes": [name, ...], "lanes":
/// [{"process", "name", "role", "spans": [gap to the one before, length, operation, layer or -1,
/// ...]}], "memory": {"allocated": [[at, bytes], ...], "reserved"}, "layer": {"forward": [begin,
/// end], "backward"}}
nlohmann::ordered_json drawn_step(const sim::StepTrace& trace);

// The file that --trace writes: predicted steps as a Chrome trace, for Perfetto.

/// Predicts the plans of the job, writes their steps and says so on stderr: of one rank, of a
/// pipeline one of each stage. `verb` is named as the origin. Throws Error where the file cannot be
/// written.
void write_trace_of(const std::string& path, const std::string& verb, const sim::Job& inputs);

}  // namespace shardwright::cli
