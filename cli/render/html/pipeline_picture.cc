// SPDX-License-Identifier: Apache-2.0
// The pipeline: a row for every stage, time to the right. A step of many passes is drawn three
// times: whole, where neighbours of one colour run together, and its fill and its drain so far that
// single passes show.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "cli/render/html/axis.h"
#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/text/quantity.h"
#include "sim/pipeline/timeline_trace.h"

namespace shardwright::cli::html {
namespace {

using sim::SliceKind;
using sim::StageSlice;

constexpr double kStageBar = 17;
constexpr std::size_t kMostPasses = 72;   // of a row, of which each still carries its number
constexpr std::size_t kMostShapes = 430;  // of a row, of which each still is seen

struct TimeWindow {
  double begin_s = 0, end_s = 0;
  double length() const { return end_s - begin_s; }
};

double to_s(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

const char* slice_style(SliceKind kind) {
  switch (kind) {
    case SliceKind::kForward:
      return "forward";
    case SliceKind::kBackward:
    case SliceKind::kInputGradient:
      return "backward";
    case SliceKind::kWeightGradient:
    case SliceKind::kDeferred:
      return "weightgrad";
    case SliceKind::kBubble:
      return "bubble";
    case SliceKind::kTransfer:
      return "transfer";
    case SliceKind::kReduction:
      return "reduce";
    case SliceKind::kGather:
      return "gather";
    case SliceKind::kOptimizer:
      return "optimizer";
    case SliceKind::kHost:
    case SliceKind::kVariation:
      break;
  }
  return "host";
}

const char* ink_of_slice(SliceKind kind) {
  const bool pale = kind == SliceKind::kBubble || kind == SliceKind::kHost ||
                    kind == SliceKind::kVariation || kind == SliceKind::kWeightGradient ||
                    kind == SliceKind::kDeferred;
  return pale ? "" : "in";
}

/// What a slice says where it is wide enough: a pass its micro-batch.
std::string slice_words(const StageSlice& slice) {
  if (slice.micro_batch >= 0) return fmt::format("{}", slice.micro_batch);
  return slice.kind == SliceKind::kBubble ? "bubble" : "";
}

/// One row; neighbours of one colour are one shape unless `single`.
std::string stage_row(const sim::ParallelTimeline& timeline, const sim::StageTimeline& stage,
                      const TimeWindow& window, double y, bool single) {
  const double scale = kPlotWidth / window.length();
  std::string body;
  double from = 0, to = -1;
  const char* style = "";
  const auto flush = [&] {
    if (to > from)
      body += rect(from, y, std::max(to - from, 0.3), kStageBar, std::string("f-") + style);
  };
  for (std::size_t i = 0; i < stage.slices.size(); ++i) {
    const StageSlice& slice = stage.slices[i];
    const double begin = std::max(to_s(slice.begin_ns), window.begin_s);
    const double end = std::min(to_s(slice.end_ns), window.end_s);
    if (end <= begin) continue;
    const double x = kPlotLeft + (begin - window.begin_s) * scale, width = (end - begin) * scale;
    if (!single) {
      constexpr double kNear = 0.3;
      const char* own = slice_style(slice.kind);
      if (own == style && x - to < kNear) {
        to = x + width;
        continue;
      }
      flush();
      from = x;
      to = x + width;
      style = own;
      continue;
    }
    // Two passes that run as one block share its height.
    const auto same_time = [&](std::size_t other) {
      return other < stage.slices.size() && stage.slices[other].begin_ns == slice.begin_ns &&
             stage.slices[other].end_ns == slice.end_ns;
    };
    const bool upper = same_time(i + 1), lower = i > 0 && same_time(i - 1);
    const double height = upper || lower ? kStageBar / 2 : kStageBar;
    const double top = lower ? y + kStageBar / 2 : y;
    body += rect(x, top, std::max(width - 0.4, 0.3), height,
                 std::string("f-") + slice_style(slice.kind),
                 fmt::format("{}: {}", sim::slice_name(timeline, slice),
                             duration(to_s(slice.end_ns - slice.begin_ns))));
    const std::string words = slice_words(slice);
    if (height == kStageBar && !words.empty() && text_width(words) < width - 3) {
      body += text(x + width / 2, y + 12.5, words, "middle", ink_of_slice(slice.kind));
    }
  }
  flush();
  return body;
}

/// A row of very many slices: over each column of time the kinds stand on one another, as high as
/// they take of it.
std::string density_row(const sim::StageTimeline& stage, double length_s, double y) {
  constexpr std::size_t kPictureColumns = 216;
  std::vector<std::map<std::string_view, double>> shares(kPictureColumns);
  for (std::size_t i = 0; i < stage.slices.size(); ++i) {
    const StageSlice& slice = stage.slices[i];
    const auto same_time = [&](std::size_t other) {
      return other < stage.slices.size() && stage.slices[other].begin_ns == slice.begin_ns;
    };
    const double weight = same_time(i + 1) || (i > 0 && same_time(i - 1)) ? 0.5 : 1;
    const double from = to_s(slice.begin_ns) / length_s * static_cast<double>(kPictureColumns);
    const double to = to_s(slice.end_ns) / length_s * static_cast<double>(kPictureColumns);
    for (auto c = static_cast<std::size_t>(from);
         c < kPictureColumns && static_cast<double>(c) < to; ++c) {
      const double column = static_cast<double>(c);
      shares[c][slice_style(slice.kind)] +=
          weight * (std::min(to, column + 1) - std::max(from, column));
    }
  }
  // Heights in whole units, so that columns that look alike are one shape.
  using Heights = std::map<std::string_view, int>;
  std::vector<Heights> heights(kPictureColumns);
  for (std::size_t c = 0; c < kPictureColumns; ++c) {
    for (const auto& [style, share] : shares[c])
      heights[c][style] = static_cast<int>(share * kStageBar + 0.5);
  }
  std::string body;
  constexpr double kSeam = 0.4;  // over the next column, so that none is seen between
  const double width = kPlotWidth / static_cast<double>(kPictureColumns);
  for (std::size_t c = 0; c < kPictureColumns;) {
    std::size_t last = c + 1;
    while (last < kPictureColumns && heights[last] == heights[c]) ++last;
    double top = y;
    for (const auto& [style, height] : heights[c]) {
      if (height == 0) continue;
      const double tall = std::min<double>(height, y + kStageBar - top);
      body += rect(kPlotLeft + static_cast<double>(c) * width, top,
                   static_cast<double>(last - c) * width + kSeam, tall, "f-" + std::string(style));
      top += tall;
    }
    c = last;
  }
  return body;
}

std::string stage_rows(const sim::ParallelTimeline& timeline, const TimeWindow& window, double& y,
                       bool single) {
  const double row = timeline.stages.size() > 20 ? kStageBar + 2 : kStageBar + 5;
  std::string body;
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    body += rect(kPlotLeft, y, kPlotWidth, kStageBar, "row");
    body += text(kPlotLeft - 8, y + 12.5, fmt::format("stage {}", s), "end", "soft");
    const sim::StageTimeline& stage = timeline.stages[s];
    body += !single && stage.slices.size() > kMostShapes
                ? density_row(stage, window.length(), y)
                : stage_row(timeline, stage, window, y, single);
    y += row;
  }
  return body;
}

std::string kinds_of_slices(const sim::ParallelTimeline& timeline) {
  constexpr std::pair<SliceKind, std::string_view> kWords[] = {
      {SliceKind::kForward, "forward"},
      {SliceKind::kBackward, "backward"},
      {SliceKind::kInputGradient, "gradient of the input"},
      {SliceKind::kWeightGradient, "gradients of weights"},
      {SliceKind::kDeferred, "gradients of the head, put off"},
      {SliceKind::kBubble, "bubble: waits for other stages"},
      {SliceKind::kTransfer, "transfer"},
      {SliceKind::kReduction, "waits for the reduction of gradients"},
      {SliceKind::kOptimizer, "norm and optimizer"},
      {SliceKind::kGather, "gather of parameters"},
      {SliceKind::kHost, "host, nodes that vary"}};
  std::vector<Key> keys;
  for (const auto& [slice_kind, words] : kWords) {
    const SliceKind kind = slice_kind;  // clang 14 lets no lambda have a name of a binding
    const bool used = std::any_of(
        timeline.stages.begin(), timeline.stages.end(), [&](const sim::StageTimeline& stage) {
          return std::any_of(stage.slices.begin(), stage.slices.end(),
                             [&](const StageSlice& slice) { return slice.kind == kind; });
        });
    if (used) keys.push_back({slice_style(kind), std::string(words), ""});
  }
  return legend(keys);
}

std::string axis_from(const TimeWindow& window, double y) {
  std::string body = line(kPlotLeft, y, kPlotLeft + kPlotWidth, y, "grid");
  body += text(kPlotLeft, y + 15, duration(window.begin_s), "start", "soft");
  body += text(kPlotLeft + kPlotWidth, y + 15, duration(window.end_s), "end", "soft");
  return body;
}

const char* operation_style(const sim::OperationSlice& slice) {
  if (slice.communication) return "gather";
  if (slice.op.kind == OpKind::kAttention) return "attention";
  return slice.op.work.kind == WorkKind::kGemm ? "product" : "memory";
}

std::string short_words(std::string words) {
  std::replace(words.begin(), words.end(), '_', ' ');
  constexpr std::string_view kLong = " projection";
  if (const std::size_t at = words.find(kLong); at != std::string::npos) {
    words.erase(at, kLong.size());
  }
  return words;
}

}  // namespace

std::string pipeline_picture(const sim::ParallelTimeline& timeline) {
  const TimeWindow whole{0, to_s(timeline.step_ns)};
  std::size_t most = 0;
  for (const sim::StageTimeline& stage : timeline.stages)
    most = std::max(most, stage.slices.size());
  const bool single = most <= kMostPasses;
  std::string body;
  double y = 4;
  body += text(kPlotLeft, y + 11, fmt::format("the step: {}", duration(whole.end_s)), "start",
               "strong");
  y += 18;
  body += stage_rows(timeline, whole, y, single);
  body += time_axis(whole.length(), y);
  y += 30;
  if (!single) {
    // As long as the last stage waits for its first pass, and then some passes.
    const double share = static_cast<double>(kMostPasses / 2) / static_cast<double>(most);
    const double fill = to_s(timeline.stages.back().slices.front().end_ns);
    const double length = std::min(whole.end_s / 3, std::max(share * whole.end_s, 1.6 * fill));
    for (const TimeWindow& window :
         {TimeWindow{0, length}, TimeWindow{whole.end_s - length, whole.end_s}}) {
      body += text(kPlotLeft, y + 11, window.begin_s > 0 ? "its end" : "its beginning", "start",
                   "strong");
      y += 18;
      body += stage_rows(timeline, window, y, true);
      body += axis_from(window, y);
      y += 30;
    }
  }
  return svg(kPictureWidth, y - 8, "Stages of the pipeline over the step", body) +
         kinds_of_slices(timeline);
}

std::string opened_picture(const sim::ParallelTimeline& timeline, std::int32_t stage) {
  const sim::StageTimeline& of = timeline.stages[static_cast<std::size_t>(stage)];
  std::string body;
  double y = 4;
  std::vector<std::int64_t> layers;
  for (const sim::OperationSlice& slice : of.operations) {
    if (slice.layer >= 0 && slice.phase == Phase::kForward) layers.push_back(slice.layer);
  }
  if (layers.empty()) return "";
  const std::int64_t layer = layers[layers.size() / 2];  // in the middle of the pass
  for (const bool forward : {true, false}) {
    std::vector<const sim::OperationSlice*> operations;
    for (const sim::OperationSlice& slice : of.operations) {
      if ((slice.phase == Phase::kForward) == forward && slice.layer == layer)
        operations.push_back(&slice);
    }
    if (operations.empty()) continue;
    TimeWindow window{to_s(operations.front()->begin_ns), 0};
    for (const auto* slice : operations) {
      window.begin_s = std::min(window.begin_s, to_s(slice->begin_ns));
      window.end_s = std::max(window.end_s, to_s(slice->end_ns));
    }
    if (window.length() <= 0) continue;
    const double scale = kPlotWidth / window.length();
    body += text(kPlotLeft, y + 11,
                 fmt::format("layer {} {}: {}", layer, forward ? "forward" : "backward",
                             duration(window.length())),
                 "start", "strong");
    y += 18;
    for (const bool communication : {false, true}) {
      body += rect(kPlotLeft, y, kPlotWidth, kStageBar, "row");
      body +=
          text(kPlotLeft - 8, y + 12.5, communication ? "communicate" : "compute", "end", "soft");
      for (const auto* slice : operations) {
        if (slice->communication != communication) continue;
        const double x = kPlotLeft + (to_s(slice->begin_ns) - window.begin_s) * scale;
        const double width = to_s(slice->end_ns - slice->begin_ns) * scale;
        const std::string name = sim::operation_name(*slice);
        const std::string style = operation_style(*slice);
        body += rect(x, y, std::max(width - 0.4, 0.3), kStageBar, "f-" + style,
                     fmt::format("{}: {}", name, duration(to_s(slice->end_ns - slice->begin_ns))));
        const std::string words = short_words(name);
        if (text_width(words) < width - 3) {
          body +=
              text(x + width / 2, y + 12.5, words, "middle", style == "memory" ? "indark" : "in");
        }
      }
      y += kStageBar + 5;
    }
    body += time_axis(window.length(), y);
    y += 30;
  }
  if (body.empty()) return "";
  return svg(kPictureWidth, y - 8, "Operations of one layer", body) +
         legend({{"product", "GEMM", ""},
                 {"attention", "attention", ""},
                 {"memory", "memory-bound kernel", ""},
                 {"gather", "collective", ""}});
}

}  // namespace shardwright::cli::html
