// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/strip.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace shardwright::cli::html {
namespace {

/// The last step of a rank, and when it begins and ends.
struct Shown {
  sim::LaneKey lane{std::numeric_limits<std::int32_t>::min(),
                    std::numeric_limits<std::int32_t>::max()};
  Nanoseconds begin_ns = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds end_ns = std::numeric_limits<Nanoseconds>::min();
};

Shown shown_of(const Timeline& timeline) {
  Shown shown;
  auto& [step, rank] = shown.lane;
  const auto middle = timeline.stage_count() / 2;
  for (const Span& span : timeline.spans) {
    if (timeline.stage_of(span.rank) == middle) rank = std::min(rank, span.rank);
  }
  if (rank == std::numeric_limits<std::int32_t>::max()) {
    for (const Span& span : timeline.spans) rank = std::min(rank, span.rank);
  }
  for (const Span& span : timeline.spans) {
    if (span.rank == rank) step = std::max(step, span.step);
  }
  for (const std::vector<Span>* spans : {&timeline.spans, &timeline.host}) {
    for (const Span& span : *spans) {
      if (span.rank != rank || span.step != step) continue;
      shown.begin_ns = std::min(shown.begin_ns, span.begin_ns);
      shown.end_ns = std::max(shown.end_ns, span.end_ns);
    }
  }
  return shown;
}

bool goes_backward(const StripSpan& span) {
  return span.operation.phase == Phase::kBackward || span.operation.phase == Phase::kRecompute;
}

}  // namespace

Strip strip_of(const sim::StepTrace& trace, std::string title) {
  constexpr double kNano = 1e-9;
  const Timeline& timeline = trace.timeline;
  const Shown shown = shown_of(timeline);
  const auto in = [&](const Span& span) {
    return sim::LaneKey{span.step, span.rank} == shown.lane;
  };
  Strip strip;
  strip.title = std::move(title);
  strip.length_s = kNano * static_cast<double>(shown.end_ns - shown.begin_ns);
  std::vector<std::optional<std::size_t>> rows(timeline.streams.size());  // by stream
  for (const Span& span : timeline.spans) {
    if (in(span)) rows[span.stream] = 0;
  }
  for (std::size_t stream = 0; stream < rows.size(); ++stream) {
    if (!rows[stream]) continue;
    rows[stream] = strip.rows.size();
    if (trace.roles[stream] == StreamRole::kCompute) strip.compute_row = strip.rows.size();
    strip.rows.push_back(timeline.streams[stream]);
  }
  const auto add = [&](const Span& span, std::size_t row) {
    const auto at = [&](Nanoseconds ns) {
      return kNano * static_cast<double>(ns - shown.begin_ns);
    };
    const Nanoseconds ready = sim::ready_ns(trace, span);
    const sim::TracedOperation& operation = trace.operations.at(span.id);
    if (ready > span.begin_ns)
      strip.spans.push_back({row, at(span.begin_ns), at(ready), operation, true});
    strip.spans.push_back({row, at(ready), at(span.end_ns), operation});
  };
  for (const Span& span : timeline.spans) {
    if (in(span)) add(span, *rows[span.stream]);
  }
  for (const Span& span : timeline.host) {
    if (!in(span)) continue;
    if (!strip.host_row) {
      strip.host_row = strip.rows.size();
      strip.rows.emplace_back("host");
    }
    add(span, *strip.host_row);
  }
  std::stable_sort(strip.spans.begin(), strip.spans.end(),
                   [](const StripSpan& a, const StripSpan& b) { return a.begin_s < b.begin_s; });
  for (MemorySample sample : timeline.memory) {
    if (sample.at_ns > shown.end_ns) break;
    sample.at_ns -= shown.begin_ns;
    if (sample.at_ns <= 0) strip.memory.clear();
    strip.memory.push_back(sample);
  }
  return strip;
}

std::string kind_style(const sim::TracedOperation& operation) {
  switch (operation.kind) {
    case OpKind::kQkvProjection:
    case OpKind::kQProjection:
    case OpKind::kKProjection:
    case OpKind::kVProjection:
    case OpKind::kRecurrenceProjection:
    case OpKind::kOutputProjection:
    case OpKind::kGateUpProjection:
    case OpKind::kGateProjection:
    case OpKind::kUpProjection:
    case OpKind::kDownProjection:
    case OpKind::kHeadProjection:
    case OpKind::kInputGradient:
    case OpKind::kWeightGradient:
      return "product";
    case OpKind::kAttention:
      return "attention";
    case OpKind::kAllGather:
    case OpKind::kBroadcast:
      return "gather";
    case OpKind::kReduceScatter:
    case OpKind::kAllReduce:
      return "reduce";
    case OpKind::kCastShard:
    case OpKind::kCastGradient:
    case OpKind::kConcatenate:
    case OpKind::kCopyIn:
    case OpKind::kCopyOut:
    case OpKind::kScale:
    case OpKind::kAccumulate:
    case OpKind::kZero:
      return "copy";
    case OpKind::kGradientNorm:
    case OpKind::kClip:
    case OpKind::kOptimizer:
      return "optimizer";
    case OpKind::kHostWork:
    case OpKind::kSynchronize:
      return "host";
    default:
      return "memory";
  }
}

std::string phase_style(const sim::TracedOperation& operation) {
  const std::string style = kind_style(operation);
  if (style != "product" && style != "attention" && style != "memory") return style;
  switch (operation.phase) {
    case Phase::kRecompute:
    case Phase::kBackward:
    case Phase::kOptimizer:
      return std::string(name_of(operation.phase));
    default:
      return "forward";
  }
}

std::optional<std::int32_t> middle_layer(const Strip& strip) {
  std::set<std::int32_t> forward, both;
  for (const StripSpan& span : strip.spans) {
    if (span.row != strip.compute_row || span.operation.layer < 0) continue;
    if (span.operation.phase == Phase::kForward) forward.insert(span.operation.layer);
    if (goes_backward(span) && forward.contains(span.operation.layer))
      both.insert(span.operation.layer);
  }
  if (both.empty()) return std::nullopt;
  return *std::next(both.begin(), static_cast<std::ptrdiff_t>(both.size() / 2));
}

std::optional<Window> layer_window(const Strip& strip, std::int32_t layer, bool backward) {
  std::vector<const StripSpan*> kernels;  // of layers and their neighbours, that go this way
  for (const StripSpan& span : strip.spans) {
    const bool this_way =
        backward ? goes_backward(span)
                 : span.operation.phase == Phase::kForward || span.operation.phase == Phase::kLoss;
    if (span.row == strip.compute_row && this_way) kernels.push_back(&span);
  }
  const auto ours = [&](const StripSpan* span) { return span->operation.layer == layer; };
  auto first = std::find_if(kernels.begin(), kernels.end(), ours);
  if (first == kernels.end()) return std::nullopt;
  if (backward) {
    const auto last = std::find_if(kernels.rbegin(), kernels.rend(), ours).base();
    first = std::find_if_not(std::make_reverse_iterator(last), kernels.rend(), ours).base();
  }
  const auto next = std::find_if_not(first, kernels.end(), ours);
  return Window{(*first)->begin_s,
                next == kernels.end() ? (*std::prev(next))->end_s : (*next)->begin_s};
}

}  // namespace shardwright::cli::html
