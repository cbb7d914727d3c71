// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/scatter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/text.h"

namespace shardwright::cli {
namespace {

constexpr int kMargin = 8;  // left of the vertical axis
constexpr int kPlotColumns = 72;

/// Where a value lies between the ends of its axis, in steps from 0 to `steps`.
class Scale {
 public:
  Scale(double least, double most, int steps)
      : low_(std::log(least)), span_(std::log(most) - std::log(least)), steps_(steps) {}
  int at(double value) const {
    return static_cast<int>(std::lround((std::log(value) - low_) / span_ * steps_));
  }

 private:
  double low_, span_;
  int steps_;
};

}  // namespace

std::string scatter(const std::vector<Point>& points, const Axis& x, const Axis& y, int rows,
                    const Terminal& out) {
  constexpr double kFar = std::numeric_limits<double>::max();
  double least_x = kFar, most_x = 0, least_y = kFar, most_y = 0;
  const auto shown = [](const Point& point) {
    return point.x > 0 && point.y > 0 && std::isfinite(point.x) && std::isfinite(point.y);
  };
  for (const Point& point : points) {
    if (!shown(point)) continue;
    least_x = std::min(least_x, point.x), most_x = std::max(most_x, point.x);
    least_y = std::min(least_y, point.y), most_y = std::max(most_y, point.y);
  }
  if (!(least_x < most_x && least_y < most_y)) return "";
  const int columns = std::min(kPlotColumns, out.columns - kMargin - 2);
  const Scale across(least_x, most_x, columns - 1), up(least_y, most_y, rows - 1);
  const auto width = static_cast<std::size_t>(columns);
  std::vector<std::string> grid(static_cast<std::size_t>(rows), std::string(width, ' '));
  for (const Point& point : points) {
    if (!shown(point)) continue;
    grid[static_cast<std::size_t>(rows - 1 - up.at(point.y))]
        [static_cast<std::size_t>(across.at(point.x))] = point.mark;
  }
  std::vector<std::string> labels(grid.size());
  for (const double tick : y.ticks) {
    if (tick < least_y || tick > most_y) continue;
    labels[static_cast<std::size_t>(rows - 1 - up.at(tick))] = fmt::format("{:g}", tick);
  }
  const char* bar = out.utf8 ? "│" : "|";
  std::string text = fmt::format("{:>{}}\n", y.title, kMargin);
  for (std::size_t r = 0; r < grid.size(); ++r) {
    std::string line = fmt::format("{:>{}} {}{}", labels[r], kMargin - 1, bar, grid[r]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  std::string line(kMargin, ' '), ticks(static_cast<std::size_t>(kMargin) + width + 1, ' ');
  line += out.utf8 ? "└" : "+";
  for (int i = 0; i < columns; ++i) line += out.utf8 ? "─" : "-";
  std::size_t free = 0;
  for (const double tick : x.ticks) {
    if (tick < least_x || tick > most_x) continue;
    const std::string label = fmt::format("{:g}", tick);
    const auto at = static_cast<std::size_t>(kMargin + 1 + across.at(tick));
    if (at < free || at + label.size() > ticks.size()) continue;
    ticks.replace(at, label.size(), label);
    free = at + label.size() + 1;
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  return text + line + "\n" + ticks + "  " + x.title + "\n";
}

}  // namespace shardwright::cli
