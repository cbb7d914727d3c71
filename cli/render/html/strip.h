// SPDX-License-Identifier: Apache-2.0
// One step on one rank, ready to be drawn: streams as rows, spans with the class that colours them.
// Made of a trace, whether simulated (cli/trace/timeline_trace.h) or measured, so that both look
// alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/chrome_trace_reader.h"

namespace shardwright::cli::html {

struct StripSpan {
  std::size_t row = 0;
  double begin_s = 0, end_s = 0;  // from the step's begin
  std::string kind, phase, name;
  std::int32_t layer = -1;  // -1: no layer's
};

struct Strip {
  std::string title;              // "predicted", "measured"
  std::vector<std::string> rows;  // those with spans; the host's last
  std::size_t compute_row = 0;
  std::vector<StripSpan> spans;  // by begin
  double length_s = 0;
};

/// The last step of the trace's first process. Throws Error when it has no operations of a
/// schedule.
Strip strip_of(const ReadTrace& trace, const std::string& file, std::string title);

/// Colours by what an operation is: product, attention, memory, gather, reduce, copy, optimizer,
/// host. See style.h.
std::string kind_style(const StripSpan& span);
/// Colours by phase where kernels compute, by kind elsewhere.
std::string phase_style(const StripSpan& span);

struct Window {
  double begin_s = 0, end_s = 0;
};

/// A layer in the middle of the step that goes both ways; none without layers.
std::optional<std::int32_t> middle_layer(const Strip& strip);
/// From the layer's first kernel forward (or backward, with recomputation) to its neighbour's; with
/// accumulation of the first micro-step forward, of the last backward.
std::optional<Window> layer_window(const Strip& strip, std::int32_t layer, bool backward);

}  // namespace shardwright::cli::html
