// SPDX-License-Identifier: Apache-2.0
// The file that --trace writes: predicted steps as a Chrome trace, for Perfetto.
#pragma once

#include <string>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/job.h"
#include "sim/parallel/timeline.h"

namespace shardwright::cli {

/// One simulated step: the schedule that the spans refer to, and the spans.
struct TracedStep {
  std::string title;  // "predicted, yafsdp"
  Schedule schedule;
  Timeline timeline;
};

/// Writes the steps and says so on stderr. `verb` is named as the origin. Throws Error when the
/// file cannot be written.
void write_step_trace(const std::string& path, const std::string& verb, const sim::Job& inputs,
                      const std::vector<TracedStep>& steps);

/// The same of plans that divide the model, one timeline for each of the job's plans.
void write_stage_traces(const std::string& path, const std::string& verb, const sim::Job& inputs,
                        const std::vector<sim::ParallelTimeline>& timelines);

}  // namespace shardwright::cli
