// SPDX-License-Identifier: Apache-2.0
// One step on one rank, ready to be drawn: streams as rows, spans with the class that colours them.
// Made of a trace, whether simulated just now or read from a file, so that both look alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/trace/step_trace.h"

namespace shardwright::cli::html {

struct StripSpan {
  std::size_t row = 0;
  double begin_s = 0, end_s = 0;  // from the step's begin
  sim::TracedOperation operation;
  bool waits = false;  // for other ranks, until it begins
};

struct Strip {
  std::string title;              // "predicted", "measured"
  std::vector<std::string> rows;  // those with spans; the host's last
  std::size_t compute_row = 0;
  std::optional<std::size_t> host_row;
  std::vector<StripSpan> spans;      // by begin
  std::vector<MemorySample> memory;  // from the step's begin
  double length_s = 0;
};

/// The last step of the trace's first rank, of a pipeline of the stage in the middle.
Strip strip_of(const sim::StepTrace& trace, std::string title);

/// Colours by what an operation is: product, attention, memory, gather, reduce, copy, optimizer,
/// host. See style.h.
std::string kind_style(const sim::TracedOperation& operation);
inline constexpr const char* kWaitStyle = "bubble";
/// Colours by phase where kernels compute, by kind elsewhere.
std::string phase_style(const sim::TracedOperation& operation);

struct Window {
  double begin_s = 0, end_s = 0;
};

/// A layer in the middle of the step that goes both ways; none without layers.
std::optional<std::int32_t> middle_layer(const Strip& strip);
/// From the layer's first kernel forward (or backward, with recomputation) to its neighbour's; with
/// accumulation of the first micro-batch forward, of the last backward.
std::optional<Window> layer_window(const Strip& strip, std::int32_t layer, bool backward);

}  // namespace shardwright::cli::html
