// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/predicted_step.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/core/memory_actions.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::sim {

PredictedStep predicted_step(Predictor& predictor, const Plan& plan) {
  PredictedStep step;
  PredictOptions options;
  options.timeline = &step.timeline;
  step.prediction = predictor.predict(plan, options);
  step.stages = predictor.program().stages;
  return step;
}

namespace {

struct MemoryChange {
  Nanoseconds at_ns = 0;
  Bytes bytes = 0;
};

/// Begin and end of every operation by id; of those without kernels when the host reached them.
std::vector<Span> spans_by_id(const Schedule& schedule, const Timeline& timeline) {
  std::size_t count = 0;
  for_each_op(schedule, [&](const OpInstance&, const Op&) { ++count; });
  std::vector<Span> spans(count);
  const auto take = [&](const Span& span) {
    if (span.id >= 0 && static_cast<std::size_t>(span.id) < count)
      spans[static_cast<std::size_t>(span.id)] = span;
  };
  for (const Span& span : timeline.host) take(span);
  for (const Span& span : timeline.spans) take(span);
  return spans;
}

}  // namespace

std::vector<MemorySample> memory_over_time(const Schedule& schedule, const Timeline& timeline) {
  const std::vector<Span> spans = spans_by_id(schedule, timeline);
  std::map<std::pair<Tensor, std::int32_t>, Bytes> live;  // by tensor and unit
  std::vector<MemoryChange> changes;
  MemoryActions actions(schedule);
  for_each_op(schedule, [&](const OpInstance& at, const Op&) {
    const Span& span = spans[static_cast<std::size_t>(at.id)];
    const auto drop = [&](Bytes& bytes) {
      if (bytes > 0) changes.push_back({span.end_ns, -bytes});
      bytes = 0;
    };
    for (const MemoryAction& a : actions.of(at)) {
      if (a.acquire) {
        live[{a.tensor, at.unit + a.offset}] = a.bytes;
        changes.push_back({span.begin_ns, a.bytes});
      } else if (a.offset == kAllUnits) {
        for (auto& [key, bytes] : live) {
          if (key.first == a.tensor) drop(bytes);
        }
      } else {
        drop(live[{a.tensor, at.unit + a.offset}]);
      }
    }
  });
  std::stable_sort(changes.begin(), changes.end(),
                   [](const MemoryChange& a, const MemoryChange& b) { return a.at_ns < b.at_ns; });
  Bytes total = 0;
  for (const PersistentTensor& tensor : schedule.persistent) total += tensor.bytes;
  std::vector<MemorySample> samples{{0, total, 0}};
  for (const MemoryChange& change : changes) {
    total += change.bytes;
    samples.push_back({change.at_ns, total, 0});
  }
  return samples;
}

}  // namespace shardwright::sim
