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
#include "sim/core/timeline.h"

namespace shardwright::cli::html {
namespace {

using Row = std::vector<PassSpan>;  // what one stage does

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

const char* slice_style(StageWork kind) {
  switch (kind) {
    case StageWork::kForward:
      return "forward";
    case StageWork::kBackward:
    case StageWork::kInputGradient:
      return "backward";
    case StageWork::kWeightGradient:
    case StageWork::kDeferred:
      return "weightgrad";
    case StageWork::kBubble:
      return "bubble";
    case StageWork::kTransfer:
      return "transfer";
    case StageWork::kReduction:
      return "reduce";
    case StageWork::kGather:
      return "gather";
    case StageWork::kOptimizer:
      return "optimizer";
    case StageWork::kHost:
    case StageWork::kVariation:
      break;
  }
  return "host";
}

const char* ink_of_slice(StageWork kind) {
  const bool pale = kind == StageWork::kBubble || kind == StageWork::kHost ||
                    kind == StageWork::kVariation || kind == StageWork::kWeightGradient ||
                    kind == StageWork::kDeferred;
  return pale ? "" : "in";
}

/// What a slice says where it is wide enough: a pass its micro-batch.
std::string slice_words(const PassSpan& slice) {
  if (slice.micro_batch >= 0) return fmt::format("{}", slice.micro_batch);
  return slice.work == StageWork::kBubble ? "bubble" : "";
}

/// One row; neighbours of one colour are one shape unless `single`.
std::string stage_row(const Row& stage, bool with_chunks, const TimeWindow& window, double y,
                      bool single) {
  const double scale = kPlotWidth / window.length();
  std::string body;
  double from = 0, to = -1;
  const char* style = "";
  const auto flush = [&] {
    if (to > from)
      body += rect(from, y, std::max(to - from, 0.3), kStageBar, std::string("f-") + style);
  };
  for (std::size_t i = 0; i < stage.size(); ++i) {
    const PassSpan& slice = stage[i];
    const double begin = std::max(to_s(slice.begin_ns), window.begin_s);
    const double end = std::min(to_s(slice.end_ns), window.end_s);
    if (end <= begin) continue;
    const double x = kPlotLeft + (begin - window.begin_s) * scale, width = (end - begin) * scale;
    if (!single) {
      constexpr double kNear = 0.3;
      const char* own = slice_style(slice.work);
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
      return other < stage.size() && stage[other].begin_ns == slice.begin_ns &&
             stage[other].end_ns == slice.end_ns;
    };
    const bool upper = same_time(i + 1), lower = i > 0 && same_time(i - 1);
    const double height = upper || lower ? kStageBar / 2 : kStageBar;
    const double top = lower ? y + kStageBar / 2 : y;
    body += rect(x, top, std::max(width - 0.4, 0.3), height,
                 std::string("f-") + slice_style(slice.work),
                 fmt::format("{}: {}", name_of(slice, with_chunks),
                             duration(to_s(slice.end_ns - slice.begin_ns))));
    const std::string words = slice_words(slice);
    if (height == kStageBar && !words.empty() && text_width(words) < width - 3) {
      body += text(x + width / 2, y + 12.5, words, "middle", ink_of_slice(slice.work));
    }
  }
  flush();
  return body;
}

/// A row of very many slices: over each column of time the kinds stand on one another, as high as
/// they take of it.
std::string density_row(const Row& stage, double length_s, double y) {
  constexpr std::size_t kPictureColumns = 216;
  std::vector<std::map<std::string_view, double>> shares(kPictureColumns);
  for (std::size_t i = 0; i < stage.size(); ++i) {
    const PassSpan& slice = stage[i];
    const auto same_time = [&](std::size_t other) {
      return other < stage.size() && stage[other].begin_ns == slice.begin_ns;
    };
    const double weight = same_time(i + 1) || (i > 0 && same_time(i - 1)) ? 0.5 : 1;
    const double from = to_s(slice.begin_ns) / length_s * static_cast<double>(kPictureColumns);
    const double to = to_s(slice.end_ns) / length_s * static_cast<double>(kPictureColumns);
    for (auto c = static_cast<std::size_t>(from);
         c < kPictureColumns && static_cast<double>(c) < to; ++c) {
      const double column = static_cast<double>(c);
      shares[c][slice_style(slice.work)] +=
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

/// A row for every stage, from the begin of the first.
struct Drawn {
  std::vector<Row> rows;
  TimeWindow whole;
  bool with_chunks = false;
  std::size_t most = 0;  // passes of a row
  bool single() const { return most <= kMostPasses; }
};

Drawn drawn_of(const Timeline& timeline) {
  Nanoseconds begin = timeline.passes.front().begin_ns, end = begin;
  std::map<std::int32_t, std::int32_t> first_ranks;  // by stage
  for (const PassSpan& span : timeline.passes) {
    begin = std::min(begin, span.begin_ns);
    end = std::max(end, span.end_ns);
    const auto [at, fresh] = first_ranks.try_emplace(timeline.stage_of(span.rank), span.rank);
    if (!fresh) at->second = std::min(at->second, span.rank);
  }
  std::map<std::int32_t, Row> rows;
  for (PassSpan span : timeline.passes) {
    if (first_ranks[timeline.stage_of(span.rank)] != span.rank) continue;
    span.begin_ns -= begin;
    span.end_ns -= begin;
    rows[timeline.stage_of(span.rank)].push_back(span);
  }
  Drawn drawn;
  drawn.whole.end_s = to_s(end - begin);
  drawn.with_chunks = timeline.stages.begin()->second.chunks > 1;
  for (auto& [stage, row] : rows) {
    drawn.most = std::max(drawn.most, row.size());
    drawn.rows.push_back(std::move(row));
  }
  return drawn;
}

std::string stage_rows(const std::vector<Row>& rows, bool with_chunks, const TimeWindow& window,
                       double& y, bool single) {
  const double height = rows.size() > 20 ? kStageBar + 2 : kStageBar + 5;
  std::string body;
  for (std::size_t s = 0; s < rows.size(); ++s) {
    body += rect(kPlotLeft, y, kPlotWidth, kStageBar, "row");
    body += text(kPlotLeft - 8, y + 12.5, fmt::format("stage {}", s), "end", "soft");
    body += !single && rows[s].size() > kMostShapes
                ? density_row(rows[s], window.length(), y)
                : stage_row(rows[s], with_chunks, window, y, single);
    y += height;
  }
  return body;
}

std::string kinds_of_slices(const std::vector<Drawn>& pipelines) {
  constexpr std::pair<StageWork, std::string_view> kWords[] = {
      {StageWork::kForward, "forward"},
      {StageWork::kBackward, "backward"},
      {StageWork::kInputGradient, "gradient of the input"},
      {StageWork::kWeightGradient, "gradients of weights"},
      {StageWork::kDeferred, "gradients of the head, put off"},
      {StageWork::kBubble, "bubble: waits for other stages"},
      {StageWork::kTransfer, "transfer"},
      {StageWork::kReduction, "waits for the reduction of gradients"},
      {StageWork::kOptimizer, "norm and optimizer"},
      {StageWork::kGather, "gather of parameters"},
      {StageWork::kHost, "host, nodes that vary"}};
  std::vector<Key> keys;
  for (const auto& [slice_kind, words] : kWords) {
    const StageWork kind = slice_kind;  // clang 14 lets no lambda have a name of a binding
    bool used = false;
    for (const Drawn& pipeline : pipelines) {
      for (const Row& row : pipeline.rows) {
        used |= std::any_of(row.begin(), row.end(),
                            [&](const PassSpan& slice) { return slice.work == kind; });
      }
    }
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

/// The begin of a step and its end.
std::string ends_of(const Drawn& pipeline, const std::string& title, double& y) {
  // As long as the last stage waits for its first pass, and then some passes.
  const TimeWindow& whole = pipeline.whole;
  const double share = static_cast<double>(kMostPasses / 2) / static_cast<double>(pipeline.most);
  const double fill = to_s(pipeline.rows.back().front().end_ns);
  const double length = std::min(whole.end_s / 3, std::max(share * whole.end_s, 1.6 * fill));
  std::string body;
  for (const TimeWindow& window :
       {TimeWindow{0, length}, TimeWindow{whole.end_s - length, whole.end_s}}) {
    body += text(kPlotLeft, y + 11,
                 fmt::format("{}: {}", title, window.begin_s > 0 ? "its end" : "its beginning"),
                 "start", "strong");
    y += 18;
    body += stage_rows(pipeline.rows, pipeline.with_chunks, window, y, true);
    body += axis_from(window, y);
    y += 30;
  }
  return body;
}

}  // namespace

Timeline usual_step(const Timeline& timeline) {
  std::map<std::int32_t, TimeWindow> steps;
  for (const PassSpan& span : timeline.passes) {
    const auto [at, fresh] =
        steps.try_emplace(span.step, TimeWindow{to_s(span.begin_ns), to_s(span.end_ns)});
    at->second.begin_s = std::min(at->second.begin_s, to_s(span.begin_ns));
    at->second.end_s = std::max(at->second.end_s, to_s(span.end_ns));
  }
  std::vector<std::pair<double, std::int32_t>> lengths;
  for (const auto& [number, window] : steps) lengths.emplace_back(window.length(), number);
  Timeline step;
  step.stages = timeline.stages;
  if (lengths.empty()) return step;
  std::sort(lengths.begin(), lengths.end());
  const std::int32_t usual = lengths[(lengths.size() - 1) / 2].second;
  for (const PassSpan& span : timeline.passes) {
    if (span.step == usual) step.passes.push_back(span);
  }
  return step;
}

std::string pipeline_picture(const std::vector<DrawnPipeline>& pipelines) {
  std::vector<Drawn> all;
  std::vector<double> lengths;
  for (const DrawnPipeline& pipeline : pipelines) {
    all.push_back(drawn_of(pipeline.timeline));
    lengths.push_back(all.back().whole.length());
  }
  std::string body;
  double y = 4;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Drawn& pipeline = all[i];
    const TimeWindow shown{0, shared_length(lengths, pipeline.whole.length())};
    body += text(kPlotLeft, y + 11,
                 fmt::format("{}: {}", pipelines[i].title, duration(pipeline.whole.end_s)), "start",
                 "strong");
    y += 18;
    body += stage_rows(pipeline.rows, pipeline.with_chunks, shown, y, pipeline.single());
    body += time_axis(shown.length(), y);
    y += 30;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].single()) body += ends_of(all[i], pipelines[i].title, y);
  }
  return svg(kPictureWidth, y - 8, "Stages of the pipeline over the step", body) +
         kinds_of_slices(all);
}

}  // namespace shardwright::cli::html
