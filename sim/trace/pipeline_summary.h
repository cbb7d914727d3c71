// SPDX-License-Identifier: Apache-2.0
// The stages of a traced pipeline: what each does and waits for until the last backward pass.
#pragma once

#include <optional>

#include "sim/trace/step_summary.h"

namespace shardwright::sim {

/// Without what is exposed. None where the trace lacks passes of a stage.
std::optional<PipelineSummary> pipeline_of(const StepTrace& trace);

}  // namespace shardwright::sim
