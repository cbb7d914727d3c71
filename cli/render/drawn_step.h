// SPDX-License-Identifier: Apache-2.0
// A step for the pages that draw it (cli/page/timeline.js): of one rank, of a pipeline of one of
// each stage. What is too short to be seen is drawn together, except in one layer of the middle
// forward and backward; so a step of millions of operations stays some hundred kilobytes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/trace/step_trace.h"

namespace shardwright::cli {

/// The step of median length of the trace's first rank; of a pipeline the passes of every stage and
/// the operations of the stage in the middle. All times in nanoseconds from the step's begin:
/// {"end_ns", "operations": [[phase, kind, name], ...], "processes": [name, ...], "lanes":
/// [{"process", "name", "role", "spans": [gap to the one before, length, operation, layer or -1,
/// ...]}], "memory": {"allocated": [[at, bytes], ...], "reserved"}, "layer": {"forward": [begin,
/// end], "backward"}}
nlohmann::ordered_json drawn_step(const sim::StepTrace& trace);

}  // namespace shardwright::cli
