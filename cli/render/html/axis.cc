// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/axis.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/render/html/html.h"

namespace shardwright::cli::html {

std::string time_axis(double seconds, double y) {
  struct Unit {
    double factor;
    const char* name;
  };
  const Unit unit = seconds >= 2      ? Unit{1, "s"}
                    : seconds >= 2e-3 ? Unit{1e3, "ms"}
                                      : Unit{1e6, "us"};
  std::string body = line(kPlotLeft, y, kPlotLeft + kPlotWidth, y, "grid");
  for (const double at : ticks(seconds * unit.factor, 9)) {
    const double x = kPlotLeft + kPlotWidth * at / (seconds * unit.factor);
    body += line(x, y, x, y + 4, "grid");
    // The last label would be cut off where its tick is the plot's end.
    body += text(x, y + 15, fmt::format("{:.6g} {}", at, unit.name),
                 x > kPlotLeft + kPlotWidth - 20 ? "end" : "middle", "soft");
  }
  return body;
}

double shared_length(const std::vector<double>& lengths, double own) {
  constexpr double kMostRatio = 6;
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  return *most > kMostRatio * *least ? own : *most;
}

}  // namespace shardwright::cli::html
