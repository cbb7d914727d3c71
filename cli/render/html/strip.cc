// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/strip.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/op.h"
#include "sim/core/parse_number.h"

namespace shardwright::cli::html {
namespace {

constexpr std::string_view kHost = "host";

std::int32_t layer_of(std::string_view unit) {
  constexpr std::string_view kLayer = "layer";
  if (!unit.starts_with(kLayer)) return -1;
  const std::optional<std::int64_t> number = parse_int64(std::string(unit.substr(kLayer.size())));
  return number && *number >= 0 && *number < (1 << 20) ? static_cast<std::int32_t>(*number) : -1;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_product(std::string_view kind) {
  return kind.ends_with("_projection") || is_one_of(kind, {"input_gradient", "weight_gradient"});
}

/// Begins at zero, sorts, drops rows without spans, puts the host last and finds the compute row.
void finish(Strip& strip) {
  double begin = std::numeric_limits<double>::max();
  for (const StripSpan& span : strip.spans) begin = std::min(begin, span.begin_s);
  for (StripSpan& span : strip.spans) {
    span.begin_s -= begin;
    span.end_s -= begin;
    strip.length_s = std::max(strip.length_s, span.end_s);
  }
  std::stable_sort(strip.spans.begin(), strip.spans.end(),
                   [](const StripSpan& a, const StripSpan& b) { return a.begin_s < b.begin_s; });
  std::vector<std::size_t> products(strip.rows.size());
  std::set<std::size_t> used;
  for (const StripSpan& span : strip.spans) {
    used.insert(span.row);
    products[span.row] += is_product(span.kind) && strip.rows[span.row] != kHost ? 1 : 0;
  }
  std::vector<std::size_t> order(used.begin(), used.end());
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return (strip.rows[a] == kHost) < (strip.rows[b] == kHost);
  });
  std::map<std::size_t, std::size_t> place;
  std::vector<std::string> rows;
  std::size_t most = 0;
  for (const std::size_t row : order) {
    if (products[row] > most) {
      most = products[row];
      strip.compute_row = rows.size();
    }
    place[row] = rows.size();
    rows.push_back(strip.rows[row]);
  }
  strip.rows = std::move(rows);
  for (StripSpan& span : strip.spans) span.row = place[span.row];
}

bool goes_backward(const StripSpan& span) {
  return span.phase == name_of(Phase::kBackward) || span.phase == name_of(Phase::kRecompute);
}

}  // namespace

Strip strip_of(const ReadTrace& trace, const std::string& file, std::string title) {
  constexpr double kMicro = 1e-6;
  std::int64_t process = std::numeric_limits<std::int64_t>::max();
  std::int64_t step = std::numeric_limits<std::int64_t>::min();
  for (const TraceSlice& slice : trace.slices) {
    if (slice.id >= 0 && !slice.kind.empty()) process = std::min(process, slice.process);
  }
  for (const TraceSlice& slice : trace.slices) {
    if (slice.process == process && slice.id >= 0) step = std::max(step, slice.step);
  }
  Strip strip;
  strip.title = std::move(title);
  std::map<std::int64_t, std::size_t> rows;
  for (const auto& [key, name] : trace.tracks) {
    if (key.first != process) continue;
    rows[key.second] = strip.rows.size();
    strip.rows.push_back(name);
  }
  for (const TraceSlice& slice : trace.slices) {
    const auto row = rows.find(slice.track);
    if (slice.process != process || slice.step != step || slice.id < 0 || row == rows.end()) {
      continue;
    }
    strip.spans.push_back({row->second, kMicro * slice.begin_us,
                           kMicro * (slice.begin_us + slice.duration_us), slice.kind, slice.phase,
                           slice.name, layer_of(slice.unit)});
  }
  if (strip.spans.empty()) {
    throw Error(
        fmt::format("{}: no slice has an operation of a schedule, expected a trace of "
                    "predict --trace or run --trace",
                    file));
  }
  finish(strip);
  return strip;
}

std::string kind_style(const StripSpan& span) {
  const std::string_view kind = span.kind;
  if (is_product(kind)) return "product";
  if (kind == "attention") return "attention";
  if (is_one_of(kind, {"all_gather", "broadcast"})) return "gather";
  if (is_one_of(kind, {"reduce_scatter", "all_reduce"})) return "reduce";
  if (is_one_of(kind, {"cast_shard", "cast_gradient", "concatenate", "copy_in", "copy_out", "scale",
                       "accumulate", "zero"})) {
    return "copy";
  }
  if (is_one_of(kind, {"gradient_norm", "clip", "optimizer"})) return "optimizer";
  if (is_one_of(kind, {"host_work", "synchronize"})) return "host";
  return "memory";
}

std::string phase_style(const StripSpan& span) {
  const std::string style = kind_style(span);
  if (style != "product" && style != "attention" && style != "memory") return style;
  if (is_one_of(span.phase, {"recompute", "backward", "optimizer"})) return span.phase;
  return "forward";
}

std::optional<std::int32_t> middle_layer(const Strip& strip) {
  std::set<std::int32_t> forward, both;
  for (const StripSpan& span : strip.spans) {
    if (span.row != strip.compute_row || span.layer < 0) continue;
    if (span.phase == name_of(Phase::kForward)) forward.insert(span.layer);
    if (goes_backward(span) && forward.contains(span.layer)) both.insert(span.layer);
  }
  if (both.empty()) return std::nullopt;
  return *std::next(both.begin(), static_cast<std::ptrdiff_t>(both.size() / 2));
}

std::optional<Window> layer_window(const Strip& strip, std::int32_t layer, bool backward) {
  std::vector<const StripSpan*> kernels;  // of layers and their neighbours, that go this way
  for (const StripSpan& span : strip.spans) {
    const bool this_way =
        backward ? goes_backward(span)
                 : span.phase == name_of(Phase::kForward) || span.phase == name_of(Phase::kLoss);
    if (span.row == strip.compute_row && this_way) kernels.push_back(&span);
  }
  const auto ours = [&](const StripSpan* span) { return span->layer == layer; };
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
