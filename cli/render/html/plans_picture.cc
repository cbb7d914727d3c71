// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/render/html/axis.h"
#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/text/quantity.h"

namespace shardwright::cli::html {

std::string plans_picture(const std::vector<PlanPoint>& points, double usable_gib) {
  if (points.size() < 2) return "";
  constexpr double kTop = 10, kHeight = 230;
  const auto [left, right] = std::minmax_element(
      points.begin(), points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  double most = usable_gib;
  for (const PlanPoint& point : points) most = std::max(most, point.y);
  const double margin = std::max(0.06 * (right->x - left->x), 1e-3 * right->x);
  const double begin = left->x - margin, end = right->x + margin;
  const auto x_of = [&](double x) { return kPlotLeft + kPlotWidth * (x - begin) / (end - begin); };
  const auto y_of = [&](double y) { return kTop + kHeight - kHeight * y / (1.06 * most); };
  std::string body = rect(kPlotLeft, kTop, kPlotWidth, kHeight, "row");
  for (const double gib : ticks(most, 5)) {
    body += line(kPlotLeft, y_of(gib), kPlotLeft + kPlotWidth, y_of(gib), "grid");
    body += text(kPlotLeft - 8, y_of(gib) + 4, fmt::format("{:.4g} GiB", gib), "end", "soft");
  }
  const std::vector<double> widths = ticks(end - begin, 6);
  const double step = widths.size() > 1 ? widths[1] : end - begin;
  for (double at = std::ceil(begin / step) * step; at <= end; at += step) {
    if (x_of(at) > kPlotLeft + kPlotWidth - 90) break;  // the unit stands there
    body += line(x_of(at), kTop + kHeight, x_of(at), kTop + kHeight + 4, "grid");
    body += text(x_of(at), kTop + kHeight + 16, thousands(at), "middle", "soft");
  }
  body += text(kPlotLeft + kPlotWidth, kTop + kHeight + 16, "tokens/s", "end", "soft");
  if (usable_gib > 0) {
    body += line(kPlotLeft, y_of(usable_gib), kPlotLeft + kPlotWidth, y_of(usable_gib), "limit");
  }
  for (std::size_t i = points.size(); i-- > 0;) {
    const PlanPoint& point = points[i];
    body += fmt::format(
        "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{}\" class=\"dot "
        "f-{}\"><title>{}</title></circle>\n",
        x_of(point.x), y_of(point.y), point.best ? 7 : 5, point.best ? "optimizer" : "forward",
        escape(point.words));
    body += text(x_of(point.x) + 9, y_of(point.y) + 14, fmt::format("{}", i + 1), "start", "soft");
  }
  return svg(kPictureWidth, kTop + kHeight + 22, "Tokens per second against memory of the plans",
             body);
}

}  // namespace shardwright::cli::html
