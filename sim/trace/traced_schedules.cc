// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/traced_schedules.h"

#include <fmt/core.h>

#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::sim {
namespace {

// Operations of the plan per span of the trace. Every operation has a span on the host in every
// step, or one on a stream where a run traced only those.
constexpr std::int64_t kMostPerSpan = 16;

/// A plan of many more passes than were traced is refused before they are written down.
void check_passes(const StepTrace& trace) {
  const PipelineShape shape = pipeline_shape(trace.identity->plan);
  if (shape.stages == 1) return;
  check_shape(shape);
  const double passes = 2.0 * shape.stages * shape.chunks * shape.passes();
  if (passes > 2.0 * static_cast<double>(trace.timeline.passes.size())) {
    throw Error(
        fmt::format("{}: the plan in its notes has {:.0f} passes a step, but the trace only {} "
                    "slices of passes, expected the plan that was traced",
                    trace.name, passes, trace.timeline.passes.size()));
  }
}

}  // namespace

std::vector<Schedule> schedules_of(const StepTrace& trace) {
  if (!trace.identity) {
    throw Error(
        fmt::format("{}: has no plan in its notes, expected a trace that run --trace of this "
                    "version wrote",
                    trace.name));
  }
  const TraceIdentity& identity = *trace.identity;
  const Model model = model_of(identity, trace.name);
  check_plan(identity.plan, model, identity.gpus_per_node);
  const Stack stack = profiles::load_stack(identity.plan.stack).stack;
  check_passes(trace);
  std::vector<Schedule> stages =
      executed_step(model, identity.plan, stack, identity.gpus_per_node).stages;
  double count = 0;  // of operations, which no integer need hold
  for (const Schedule& schedule : stages) {
    for (const Section& section : schedule.sections) {
      for (std::uint32_t b = 0; b < section.block_count; ++b) {
        const Block& block = schedule.blocks[section.first_block + b];
        count += static_cast<double>(section.repeats) * block.repeats * block.op_count;
      }
    }
  }
  const std::size_t spans = trace.timeline.spans.size() + trace.timeline.host.size();
  if (trace.timeline.passes.empty() && count > static_cast<double>(spans) * kMostPerSpan) {
    throw Error(
        fmt::format("{}: the plan in its notes has {:.0f} operations a step, but the trace only {} "
                    "slices of operations, expected the plan that was traced",
                    trace.name, count, spans));
  }
  auto traced = trace.operations.begin();
  const auto check = [&](const std::string& planned) {
    if (traced->second.name == planned) return void(++traced);
    throw Error(
        fmt::format("{}: operation {} is {}, but of the plan in its notes it is {}; the trace "
                    "was written by another version",
                    trace.name, traced->first, traced->second.name, planned));
  };
  for (const Schedule& schedule : stages) {
    for_each_op(schedule, [&](const OpInstance& at, const Op&) {
      if (traced != trace.operations.end() && traced->first == at.id) check(describe(schedule, at));
    });
  }
  if (traced != trace.operations.end()) {
    check(fmt::format("none, because the step has {:.0f} operations", count));
  }
  return stages;
}

}  // namespace shardwright::sim
