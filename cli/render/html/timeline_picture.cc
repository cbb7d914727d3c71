// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "cli/render/html/axis.h"
#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/text/quantity.h"

namespace shardwright::cli::html {
namespace {

constexpr double kRow = 22, kBarHeight = 17;  // heights

struct Frame {
  Window window;  // of the strip
  double scale;   // drawing units per second
  bool named;     // whether spans carry their names
  std::string (*style)(const sim::TracedOperation&);
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// "layer17.backward.down_projection.weight_gradient" is "down dW".
std::string short_name(const sim::TracedOperation& operation) {
  std::string name(name_of(operation.kind));
  const bool of_input = operation.kind == OpKind::kInputGradient;
  if (of_input || operation.kind == OpKind::kWeightGradient) {
    const std::size_t end = operation.name.rfind('.');
    const std::size_t begin = end == std::string::npos ? end : operation.name.rfind('.', end - 1);
    if (begin != std::string::npos) name = operation.name.substr(begin + 1, end - begin - 1);
    name += of_input ? " dX" : " dW";
  }
  name = replaced(name, "_projection", "");
  name = replaced(name, "gate_up", "gate+up");
  return replaced(name, "_", " ");
}

/// The class of text on that colour; the reader's own ink on what is light by day and dark by
/// night.
const char* ink_of_span(std::string_view style) {
  if (style == "host") return "";
  return style == "memory" || style == "copy" ? "indark" : "in";
}

/// Neighbours of one colour are one shape, so that a step of thousands of spans stays small.
struct Shape {
  double from = 0, to = -1;
  std::string style, words, tip;
};

std::string draw(const Shape& shape, double top, bool named) {
  constexpr double kThinnest = 0.35;
  if (shape.to < shape.from) return "";
  const double width = std::max(shape.to - shape.from, kThinnest);
  std::string text = rect(shape.from, top, width, kBarHeight, "f-" + shape.style,
                          named ? shape.tip : std::string());
  if (named && text_width(shape.words) < width - 4) {
    text += html::text(shape.from + width / 2, top + 12.5, shape.words, "middle",
                       ink_of_span(shape.style));
  }
  return text;
}

bool within(const StripSpan& span, const Window& window) {
  return span.end_s > window.begin_s && span.begin_s < window.end_s && span.end_s > span.begin_s;
}

/// Rows to draw: a host that only waits has nothing to say.
std::vector<std::size_t> rows_of(const Strip& strip, const Window& window) {
  std::vector<std::size_t> rows;
  for (std::size_t row = 0; row < strip.rows.size(); ++row) {
    const bool speaks =
        std::any_of(strip.spans.begin(), strip.spans.end(), [&](const StripSpan& span) {
          return span.row == row && within(span, window) &&
                 span.operation.kind != OpKind::kSynchronize;
        });
    if (speaks || row != strip.host_row) rows.push_back(row);
  }
  return rows;
}

/// The rows of one strip; `y` is the first one's top, then the last one's bottom.
std::string draw_rows(const Strip& strip, const Frame& frame, double& y) {
  constexpr double kNear = 0.35;
  std::string text;
  for (const std::size_t row : rows_of(strip, frame.window)) {
    text += rect(kPlotLeft, y, kPlotWidth, kBarHeight, "row");
    text += html::text(kPlotLeft - 8, y + 12.5, strip.rows[row], "end", "soft");
    Shape shape;
    for (const StripSpan& span : strip.spans) {
      if (span.row != row || !within(span, frame.window)) continue;
      const double begin = std::max(span.begin_s, frame.window.begin_s) - frame.window.begin_s;
      const double end = std::min(span.end_s, frame.window.end_s) - frame.window.begin_s;
      const double from = kPlotLeft + begin * frame.scale, to = kPlotLeft + end * frame.scale;
      std::string style = span.waits ? kWaitStyle : frame.style(span.operation);
      if (!frame.named && style == shape.style && from - shape.to < kNear) {
        shape.to = std::max(shape.to, to);
        continue;
      }
      text += draw(shape, y, frame.named);
      shape = {from, to, std::move(style), "", ""};
      if (!frame.named) continue;
      shape.words = short_name(span.operation);
      shape.tip = fmt::format("{}: {}", span.operation.name, duration(span.end_s - span.begin_s));
    }
    text += draw(shape, y, frame.named);
    y += kRow;
  }
  return text;
}

/// Above the compute row: which of its kernels recompute and which go backward.
std::string draw_phases(const Strip& strip, const Frame& frame, double y) {
  struct Range {
    Phase phase;
    double from, to;
  };
  std::vector<Range> ranges;
  for (const StripSpan& span : strip.spans) {
    if (span.row != strip.compute_row || span.begin_s < frame.window.begin_s ||
        span.begin_s >= frame.window.end_s || span.operation.phase == Phase::kReduce) {
      continue;
    }
    const double from = kPlotLeft + (span.begin_s - frame.window.begin_s) * frame.scale;
    const double to = kPlotLeft + (span.end_s - frame.window.begin_s) * frame.scale;
    if (!ranges.empty() && ranges.back().phase == span.operation.phase) {
      ranges.back().to = std::max(ranges.back().to, to);
    } else {
      ranges.push_back({span.operation.phase, from, to});
    }
  }
  std::string text;
  for (const Range& range : ranges) {
    const std::string phase(name_of(range.phase));
    if (text_width(phase) > range.to - range.from) continue;
    text += line(range.from + 1, y, range.to - 1, y, "grid");
    text += html::text((range.from + range.to) / 2, y - 4, phase, "middle", "soft");
  }
  return text;
}

std::string caption(const Strip& strip, double seconds) {
  return fmt::format("{}: {}", strip.title, duration(seconds));
}

std::string kinds_legend(const std::set<std::string>& used) {
  std::vector<Key> keys;
  for (const auto& [name, words] : std::initializer_list<std::pair<const char*, const char*>>{
           {"forward", "forward"},
           {"recompute", "recompute"},
           {"backward", "backward"},
           {"product", "GEMM"},
           {"attention", "attention"},
           {"memory", "memory-bound kernel"},
           {"gather", "gather of parameters"},
           {"reduce", "reduction of gradients"},
           {"copy", "copy, cast, sum"},
           {"optimizer", "optimizer"},
           {kWaitStyle, "waits for other ranks"},
           {"host", "host"}}) {
    if (used.contains(name)) keys.push_back({name, words, ""});
  }
  return legend(keys);
}

/// What live tensors take over the step, against what the allocator may hold.
std::string memory_curve(const std::vector<MemorySample>& samples, double width, double scale,
                         double top, double height, Bytes limit) {
  constexpr Bytes kFar = 12;  // a limit so much higher would leave nothing of the curve to see
  std::vector<Bytes> curve(static_cast<std::size_t>(width) + 1);
  std::size_t column = 0;
  Bytes now = 0, most = 1;
  for (const MemorySample& sample : samples) {
    const double x = std::clamp(static_cast<double>(sample.at_ns) * 1e-9 * scale, 0.0, width);
    for (const auto at = static_cast<std::size_t>(x); column < at;) curve[++column] = now;
    now = sample.allocated_bytes;
    curve[column] = std::max(curve[column], now);
    most = std::max(most, now);
  }
  while (column + 1 < curve.size()) curve[++column] = now;
  if (limit > kFar * most) limit = 0;
  most = std::max(most, limit);
  const auto y_of = [&](Bytes value) {
    return top + height - height * 0.94 * static_cast<double>(value) / static_cast<double>(most);
  };
  std::string points;
  for (std::size_t i = 0; i < curve.size(); ++i)
    points += fmt::format("{:.0f},{:.1f} ", kPlotLeft + static_cast<double>(i), y_of(curve[i]));
  const double right = kPlotLeft + static_cast<double>(curve.size() - 1);
  std::string body = rect(kPlotLeft, top, kPlotWidth, height, "row");
  body += fmt::format("<polygon class=\"area\" points=\"{:.0f},{:.1f} {}{:.0f},{:.1f}\"/>\n",
                      kPlotLeft, top + height, points, right, top + height);
  body += fmt::format("<polyline class=\"curve\" points=\"{}\"/>\n", points);
  if (limit > 0) {
    body += line(kPlotLeft, y_of(limit), right, y_of(limit), "limit");
    body += html::text(kPlotLeft - 8, y_of(limit) + 4, bytes(limit), "end", "soft");
  }
  body += html::text(kPlotLeft - 8, top + height * 0.6, "memory", "end", "soft");
  return body;
}

}  // namespace

std::string step_picture(const std::vector<Strip>& strips, Bytes limit_bytes) {
  if (strips.empty()) return "";
  const std::vector<MemorySample>& memory = strips.front().memory;
  std::vector<double> lengths;
  for (const Strip& strip : strips) lengths.push_back(strip.length_s);
  std::string body;
  double y = 4;
  for (std::size_t i = 0; i < strips.size(); ++i) {
    const Strip& strip = strips[i];
    const double length = shared_length(lengths, strip.length_s);
    const double scale = kPlotWidth / length;
    body += text(kPlotLeft, y + 11, caption(strip, strip.length_s), "start", "strong");
    y += 18;
    body += draw_rows(strip, {{0, strip.length_s}, scale, false, phase_style}, y);
    if (i == 0 && !memory.empty()) {
      constexpr double kHeight = 78;
      body += memory_curve(memory, strip.length_s * scale, scale, y, kHeight, limit_bytes);
      y += kHeight + 6;
    }
    body += time_axis(length, y);
    y += 30;
  }
  std::string picture = svg(kPictureWidth, y - 8, "Timeline of the step", body);
  std::set<std::string> used;
  for (const Strip& strip : strips) {
    for (const StripSpan& span : strip.spans)
      used.insert(span.waits ? kWaitStyle : phase_style(span.operation));
  }
  picture += kinds_legend(used);
  if (!memory.empty()) {
    picture +=
        element("p",
                "Memory: what tensors take while the operations that use them run. A dashed line "
                "is what is usable less the runtime.",
                "note");
  }
  return picture;
}

std::string layer_picture(const std::vector<Strip>& strips, std::int32_t layer, bool backward) {
  std::vector<double> lengths;
  std::vector<std::pair<const Strip*, Window>> shown;
  for (const Strip& strip : strips) {
    const std::optional<Window> window = layer_window(strip, layer, backward);
    if (!window || window->end_s <= window->begin_s) continue;
    shown.emplace_back(&strip, *window);
    lengths.push_back(window->end_s - window->begin_s);
  }
  if (shown.empty()) return "";
  std::string body;
  std::set<std::string> used;
  double y = 4;
  for (const auto& [strip, window] : shown) {
    const double length = shared_length(lengths, window.end_s - window.begin_s);
    const Frame frame{window, kPlotWidth / length, true, kind_style};
    body +=
        text(kPlotLeft, y + 11, caption(*strip, window.end_s - window.begin_s), "start", "strong");
    y += 34;
    body += draw_phases(*strip, frame, y - 4);
    body += draw_rows(*strip, frame, y);
    body += time_axis(length, y);
    y += 30;
    for (const StripSpan& span : strip->spans) {
      if (within(span, window) && span.operation.kind != OpKind::kSynchronize)
        used.insert(span.waits ? kWaitStyle : kind_style(span.operation));
    }
  }
  return svg(kPictureWidth, y - 8, backward ? "One layer backward" : "One layer forward", body) +
         kinds_legend(used);
}

}  // namespace shardwright::cli::html
