// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/pipeline_summary.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "sim/core/base/quantile.h"
#include "sim/core/base/seconds.h"

namespace shardwright::sim {
namespace {

/// When passes of a step run, on all of its ranks.
struct PassExtent {
  Nanoseconds begin_ns = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds end_ns = std::numeric_limits<Nanoseconds>::min();
};

/// One rank in one step.
StageSummary stage_of(const std::vector<const PassSpan*>& spans, const PassExtent& step) {
  Nanoseconds first_backward = step.end_ns, last_forward = step.begin_ns;
  for (const PassSpan* span : spans) {
    if (!is_pass(span->work)) continue;
    if (span->work == StageWork::kForward) {
      last_forward = std::max(last_forward, span->end_ns);
    } else {
      first_backward = std::min(first_backward, span->begin_ns);
    }
  }
  const Nanoseconds drains = std::max(first_backward, last_forward);
  StageSummary stage;
  const auto wait = [&](Nanoseconds begin, Nanoseconds end) {
    const auto part = [&](Nanoseconds from, Nanoseconds until) {
      return seconds_of(std::max<Nanoseconds>(0, std::min(end, until) - std::max(begin, from)));
    };
    stage.warm_up_s += part(step.begin_ns, first_backward);
    stage.steady_s += part(first_backward, drains);
    stage.drain_s += part(drains, step.end_ns);
  };
  Nanoseconds now = step.begin_ns;
  for (const PassSpan* span : spans) {
    // Of two passes that run as one block the second begins before the first has ended.
    if (!is_pass(span->work) || span->end_ns <= now) continue;
    wait(now, span->begin_ns);
    stage.busy_s += seconds_of(span->end_ns - std::max(now, span->begin_ns));
    now = span->end_ns;
  }
  wait(now, step.end_ns);
  return stage;
}

double median_of(const std::vector<StageSummary>& lanes, double StageSummary::*part) {
  std::vector<double> values;
  for (const StageSummary& lane : lanes) values.push_back(lane.*part);
  return quantile(values, 0.5);
}

}  // namespace

double PipelineSummary::share(double StageSummary::*part) const {
  double sum = 0;
  for (const StageSummary& stage : stages) sum += stage.*part;
  const double whole = passes_s * static_cast<double>(stages.size());
  return whole > 0 ? sum / whole : 0;
}

double PipelineSummary::bubble() const {
  return share(&StageSummary::warm_up_s) + share(&StageSummary::steady_s) +
         share(&StageSummary::drain_s);
}

std::size_t PipelineSummary::limiting() const {
  constexpr double kRounding = 1e-9;  // of sums of spans
  std::size_t most = 0;
  for (std::size_t s = 1; s < stages.size(); ++s) {
    if (stages[s].busy_s > stages[most].busy_s * (1 + kRounding)) most = s;
  }
  return most;
}

std::optional<PipelineSummary> pipeline_of(const StepTrace& trace) {
  std::map<std::int32_t, PassExtent> steps;
  for (const PassSpan& span : trace.timeline.passes) {
    if (!is_pass(span.work)) continue;
    PassExtent& step = steps[span.step];
    step.begin_ns = std::min(step.begin_ns, span.begin_ns);
    step.end_ns = std::max(step.end_ns, span.end_ns);
  }
  std::map<std::int32_t, std::vector<StageSummary>> lanes;  // by stage
  for (const auto& [key, lane] : lanes_of(trace.timeline)) {
    if (!lane.passes.empty() && steps.contains(key.first))
      lanes[trace.timeline.stage_of(key.second)].push_back(stage_of(lane.passes, steps[key.first]));
  }
  PipelineSummary pipeline;
  std::vector<double> lengths;
  for (const auto& [number, step] : steps)
    lengths.push_back(seconds_of(step.end_ns - step.begin_ns));
  pipeline.passes_s = lengths.empty() ? 0 : quantile(lengths, 0.5);
  for (const auto& [stage, of] : lanes) {
    if (stage != std::ssize(pipeline.stages)) return std::nullopt;
    StageSummary& summary = pipeline.stages.emplace_back();
    for (double StageSummary::*part : {&StageSummary::busy_s, &StageSummary::warm_up_s,
                                       &StageSummary::steady_s, &StageSummary::drain_s})
      summary.*part = median_of(of, part);
  }
  return pipeline.stages.empty() ? std::nullopt : std::optional(pipeline);
}

}  // namespace shardwright::sim
