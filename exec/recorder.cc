// SPDX-License-Identifier: Apache-2.0
#include "exec/recorder.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "exec/host/host_device.h"
#include "sim/core/base/check.h"
#include "sim/core/memory_actions.h"

namespace shardwright::exec {

namespace {

Nanoseconds wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The bytes that a step holds, at the ends of the operations that change them.
std::vector<MemorySample> memory_curve(const Schedule& schedule, const std::vector<Span>& spans,
                                       Bytes reserved) {
  std::map<OpId, Nanoseconds> ends;
  for (const Span& span : spans) {
    Nanoseconds& end = ends[span.id];
    end = std::max(end, span.end_ns);
  }
  Bytes total = 0;
  for (const PersistentTensor& tensor : schedule.persistent) total += tensor.bytes;
  std::vector<MemorySample> samples{{0, total, reserved}};
  MemoryActions actions(schedule);
  Nanoseconds now_ns = 0;
  for_each_op(schedule, [&](const OpInstance& at, const Op&) {
    if (const auto end = ends.find(at.id); end != ends.end()) {
      now_ns = std::max(now_ns, end->second);
    }
    const Bytes before = total;
    for (const MemoryAction& a : actions.of(at)) total += a.acquire ? a.bytes : -a.bytes;
    if (total != before) samples.push_back({now_ns, total, reserved});
  });
  return samples;
}

}  // namespace

Recorder::Recorder(Device& device, std::size_t spans, std::int32_t rank, StepTracer* tracer)
    : device_(device), rank_(rank), tracer_(tracer), spans_(spans), host_(spans) {}

void Recorder::prepare_step(std::int32_t step) {
  watched_ = tracer_ != nullptr && !spans_.empty() && tracer_->begin_step(step);
}

void Recorder::begin_step(std::int32_t step) {
  used_ = 0;
  step_ = step;
  const StreamClocks* clocks = device_.clocks();
  step_begin_ns_ = clocks != nullptr ? clocks->latest() : wall_ns();
}

Recorder::Scope::Scope(Recorder& recorder, OpId id, StreamId stream)
    : recorder_(recorder), span_(nullptr) {
  if (!recorder.records()) return;
  SHARDWRIGHT_CHECK(recorder.used_ < recorder.spans_.size(), "more than {} spans in a step",
                    recorder.spans_.size());
  Span& host = recorder.host_[recorder.used_];
  span_ = &recorder.spans_[recorder.used_++];
  *span_ = Span{};
  span_->id = id;
  span_->rank = recorder.rank_;
  span_->step = recorder.step_;
  span_->stream = static_cast<std::uint8_t>(stream);
  host = *span_;
  host.begin_ns = wall_ns();
  if (recorder.watched_) {
    recorder.tracer_->begin_op(id);
  } else {
    recorder.device_.timestamp(stream, &span_->begin_ns);
  }
}

Recorder::Scope::~Scope() {
  if (span_ == nullptr) return;
  if (recorder_.watched_) {
    recorder_.tracer_->end_op();
  } else {
    recorder_.device_.timestamp(span_->stream, &span_->end_ns);
  }
  recorder_.host_[static_cast<std::size_t>(span_ - recorder_.spans_.data())].end_ns = wall_ns();
}

Timeline Recorder::timeline(const Schedule& schedule, Bytes reserved) const {
  Timeline timeline;
  timeline.source = "measured";
  for (const Stream& stream : schedule.streams) timeline.streams.emplace_back(stream.name);
  const auto end = static_cast<std::ptrdiff_t>(used_);
  // The host of streams with clocks of their own takes no time.
  if (device_.clocks() == nullptr) timeline.host.assign(host_.begin(), host_.begin() + end);
  if (watched_) {
    TracedStep seen = tracer_->take_step();
    timeline.spans = std::move(seen.spans);
    timeline.host.insert(timeline.host.end(), seen.host.begin(), seen.host.end());
    timeline.names = std::move(seen.names);
    if (seen.streams.size() > timeline.streams.size()) timeline.streams = std::move(seen.streams);
    for (std::vector<Span>* spans : {&timeline.spans, &timeline.host}) {
      for (Span& span : *spans) span.step = step_;
    }
  } else {
    timeline.spans.assign(spans_.begin(), spans_.begin() + end);
  }
  for (std::vector<Span>* spans : {&timeline.spans, &timeline.host}) {
    for (Span& span : *spans) {
      span.begin_ns -= step_begin_ns_;
      span.end_ns -= step_begin_ns_;
      timeline.step_ns = std::max(timeline.step_ns, span.end_ns);
    }
  }
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(),
                   [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  timeline.memory = memory_curve(schedule, timeline.spans, reserved);
  return timeline;
}

}  // namespace shardwright::exec
