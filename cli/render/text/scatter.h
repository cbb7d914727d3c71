// SPDX-License-Identifier: Apache-2.0
// Points on two logarithmic axes, in text.
#pragma once

#include <string>
#include <vector>

#include "cli/render/text/terminal.h"

namespace shardwright::cli {

struct Point {
  double x = 0, y = 0;  // above 0
  char mark = '.';
};

struct Axis {
  std::string title;          // "days"
  std::vector<double> ticks;  // candidates; those within the range are written
};

/// Later points cover earlier ones. Points that are not above 0 in both are left out; fewer than
/// two that differ give nothing. At most `out.columns` wide.
std::string scatter(const std::vector<Point>& points, const Axis& x, const Axis& y, int rows,
                    const Terminal& out);

}  // namespace shardwright::cli
