// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/money_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/render/html/axis.h"
#include "cli/render/html/html.h"
#include "cli/render/text/quantity.h"

namespace shardwright::cli::html {
namespace {

constexpr double kMoneyTop = 10;
constexpr double kMoneyHeight = 260;

/// A logarithmic scale over what was added to it, a little wider.
struct LogScale {
  double low = 0, high = 0, from = 0, length = 0;

  void add(double value) {
    low = low > 0 ? std::min(low, value) : value;
    high = std::max(high, value);
  }
  double at(double value) const {
    const double begin = std::log(low / 1.2);
    return from + length * (std::log(value) - begin) / (std::log(high * 1.2) - begin);
  }
  /// 1, 2, 5, 10, ...; only powers of ten where the scale is long.
  std::vector<double> marks() const {
    std::vector<double> marks;
    const bool wide = high / low > 200;
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double mark = digit * power;
        if (mark >= low / 1.2 && mark <= high * 1.2 && (digit == 1.0 || !wide))
          marks.push_back(mark);
      }
    }
    return marks;
  }
};

std::string money_frame(const LogScale& days, const LogScale& usd) {
  std::string body = rect(kPlotLeft, kMoneyTop, kPlotWidth, kMoneyHeight, "row");
  for (const double mark : days.marks()) {
    body += line(days.at(mark), kMoneyTop, days.at(mark), kMoneyTop + kMoneyHeight, "grid");
    body += text(days.at(mark), kMoneyTop + kMoneyHeight + 16, fmt::format("{:g}", mark), "middle",
                 "soft");
  }
  for (const double mark : usd.marks()) {
    body += line(kPlotLeft, usd.at(mark), kPlotLeft + kPlotWidth, usd.at(mark), "grid");
    body += text(kPlotLeft - 8, usd.at(mark) + 4, dollars(mark), "end", "soft");
  }
  return body + text(kPlotLeft + kPlotWidth, kMoneyTop + kMoneyHeight + 32, "days", "end", "soft");
}

std::string front_line(std::vector<OptionPoint> points, const LogScale& days, const LogScale& usd) {
  std::erase_if(points, [](const OptionPoint& point) { return !point.front; });
  std::sort(points.begin(), points.end(),
            [](const auto& one, const auto& other) { return one.days < other.days; });
  std::string path;
  for (const OptionPoint& point : points) {
    path += fmt::format("{}{:.2f} {:.2f}", path.empty() ? "M" : "L", days.at(point.days),
                        usd.at(point.usd));
  }
  return path.empty() ? "" : fmt::format("<path d=\"{}\" class=\"curve\"/>\n", path);
}

std::string dot(const OptionPoint& point, const LogScale& days, const LogScale& usd) {
  const char* color = point.chosen ? "memory" : point.meets ? "forward" : "host";
  std::string body = fmt::format(
      "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{}\" class=\"dot "
      "f-{}\"><title>{}</title></circle>\n",
      days.at(point.days), usd.at(point.usd),
      point.chosen  ? 8
      : point.front ? 5
                    : 4,
      color, escape(point.words));
  if (point.chosen) {
    body += text(days.at(point.days), usd.at(point.usd) - 13, "recommended", "middle", "strong");
  }
  return body;
}

}  // namespace

std::string money_picture(const std::vector<OptionPoint>& points,
                          std::optional<double> deadline_days, std::optional<double> budget_usd) {
  if (points.size() < 2) return "";
  LogScale days{.from = kPlotLeft, .length = kPlotWidth};
  LogScale usd{.from = kMoneyTop + kMoneyHeight, .length = -kMoneyHeight};
  for (const OptionPoint& point : points) {
    days.add(point.days);
    usd.add(point.usd);
  }
  if (deadline_days) days.add(*deadline_days);
  if (budget_usd) usd.add(*budget_usd);
  std::string body = money_frame(days, usd);
  if (deadline_days)
    body += line(days.at(*deadline_days), kMoneyTop, days.at(*deadline_days),
                 kMoneyTop + kMoneyHeight, "limit");
  if (budget_usd)
    body +=
        line(kPlotLeft, usd.at(*budget_usd), kPlotLeft + kPlotWidth, usd.at(*budget_usd), "limit");
  body += front_line(points, days, usd);
  std::vector<OptionPoint> ordered = points;
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& one, const auto& other) {
    return one.chosen < other.chosen || (one.chosen == other.chosen && one.meets < other.meets);
  });
  for (const OptionPoint& point : ordered) body += dot(point, days, usd);
  return svg(kPictureWidth, kMoneyTop + kMoneyHeight + 36, "Days against dollars of every option",
             body) +
         legend({{"memory", "recommended", ""},
                 {"forward", "meets the goal", ""},
                 {"host", "does not", ""},
                 {"product", "line: nothing is both faster and cheaper", ""}});
}

}  // namespace shardwright::cli::html
