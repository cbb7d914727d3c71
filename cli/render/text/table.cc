// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <string_view>

#include "cli/text.h"
#include "sim/core/base/check.h"

namespace shardwright::cli {

namespace {

constexpr int kGap = 2;            // spaces between columns
constexpr int kNarrowestText = 8;  // a text column gives way no further than this

// "6.95 s", "-3 %", "±4", "12x", "[6.6, 7.3]" and "–" all read as numbers; "a100" does not.
bool reads_as_number(std::string_view text) {
  for (const std::string_view sign :
       {"±", "≤", "≥", "≈", "−", "–", "—", "-", "+", "<", ">", "~", "$", "["}) {
    if (text.starts_with(sign)) {
      text.remove_prefix(sign.size());
      if (text.empty()) return true;
      break;
    }
  }
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
}

// The table as text that the terminal can show, before it is laid out.
struct Layout {
  std::vector<std::string> titles;
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> right;
  std::vector<int> widths;
};

// The widest word of column `c`: narrower, the column breaks names in two.
int widest_word(const Layout& layout, std::size_t c) {
  int widest = 0;
  for (const std::vector<std::string>& row : layout.rows) {
    const std::string_view cell = row[c];
    for (std::size_t at = 0; at < cell.size();) {
      const std::size_t end = std::min(cell.find(' ', at), cell.size());
      // An indented name is as wide as its cell.
      const std::size_t from = cell.find_first_not_of(' ') == at ? 0 : at;
      widest = std::max(widest, display_width(cell.substr(from, end - from)));
      at = end + 1;
    }
  }
  return widest;
}

// Takes width from the widest text columns: between words as long as that is enough, then anywhere.
void shrink_to(Layout& layout, int columns) {
  int total = kGap * (static_cast<int>(layout.widths.size()) - 1);
  for (const int width : layout.widths) total += width;
  std::vector<int> least(layout.widths.size(), kNarrowestText);
  for (std::size_t c = 0; c < least.size(); ++c) {
    least[c] = std::max(kNarrowestText, std::min(widest_word(layout, c), columns / 2));
  }
  while (total > columns) {
    int* widest = nullptr;
    for (std::size_t c = 0; c < layout.widths.size(); ++c) {
      if (layout.right[c] || layout.widths[c] <= least[c]) continue;
      if (widest == nullptr || layout.widths[c] > *widest) widest = &layout.widths[c];
    }
    if (widest == nullptr) {
      if (std::all_of(least.begin(), least.end(), [](int w) { return w == kNarrowestText; }))
        return;
      std::fill(least.begin(), least.end(), kNarrowestText);
      continue;
    }
    --*widest;
    --total;
  }
}

void append_spaces(std::string& line, int count) {
  if (count > 0) line.append(static_cast<std::size_t>(count), ' ');
}

// One row, as tall as its tallest cell. `style_of` gives the style of a column's cell.
template <typename StyleOf>
void append_row(std::string& out, const Layout& layout, const std::vector<std::string>& cells,
                const Terminal& terminal, StyleOf style_of) {
  std::vector<std::vector<std::string>> lines;
  std::size_t height = 1;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    lines.push_back(wrap(cells[c], std::max(1, layout.widths[c])));
    height = std::max(height, lines.back().size());
  }
  for (std::size_t row = 0; row < height; ++row) {
    int owed = 0;  // spaces wait until something follows them, so that none trail
    for (std::size_t c = 0; c < lines.size(); ++c) {
      const std::string text = row < lines[c].size() ? lines[c][row] : std::string{};
      const int padding = layout.widths[c] - display_width(text);
      if (text.empty()) {
        owed += padding + kGap;
        continue;
      }
      append_spaces(out, owed + (layout.right[c] ? padding : 0));
      const std::optional<Style> style = style_of(c);
      out += style ? paint(terminal, *style, text) : text;
      owed = kGap + (layout.right[c] ? 0 : padding);
    }
    out += '\n';
  }
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(std::vector<Cell> cells) {
  SHARDWRIGHT_CHECK(cells.size() <= columns_.size(), "{} cells in a table of {} columns",
                    cells.size(), columns_.size());
  cells.resize(columns_.size(), Cell(""));
  rows_.push_back(std::move(cells));
}

void Table::add_rule() {
  rules_.push_back(rows_.size());
}

std::string Table::render(const Terminal& terminal) const {
  Layout layout;
  bool has_head = false;
  for (const std::vector<Cell>& row : rows_) {
    std::vector<std::string>& texts = layout.rows.emplace_back();
    for (const Cell& cell : row) texts.push_back(printable(cell.text, terminal.utf8));
  }
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    layout.titles.push_back(printable(columns_[c].title, terminal.utf8));
    has_head = has_head || !layout.titles.back().empty();
    int width = display_width(layout.titles.back());
    bool numbers = true;
    bool any = false;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      width = std::max(width, display_width(layout.rows[r][c]));
      if (rows_[r][c].text.empty()) continue;
      any = true;
      numbers = numbers && reads_as_number(rows_[r][c].text);
    }
    layout.widths.push_back(width);
    layout.right.push_back(columns_[c].align == Align::kAuto ? any && numbers
                                                             : columns_[c].align == Align::kRight);
  }
  shrink_to(layout, terminal.columns);

  int total = layout.widths.empty() ? 0 : -kGap;
  for (const int width : layout.widths) total += width + kGap;
  std::string rule;
  for (int i = 0; i < total; ++i) rule += terminal.utf8 ? "─" : "-";
  rule += '\n';

  std::string out;
  if (has_head) {
    append_row(out, layout, layout.titles, terminal, [](std::size_t) { return Style::kBold; });
    out += rule;
  }
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (std::find(rules_.begin(), rules_.end(), r) != rules_.end()) out += rule;
    append_row(out, layout, layout.rows[r], terminal,
               [this, r](std::size_t c) { return rows_[r][c].style; });
  }
  return out;
}

std::string bar(double share, int columns, const Terminal& out) {
  if (!(share > 0)) return "";
  const double length = std::min(share, 1.0) * columns;
  if (!out.utf8) {
    return std::string(static_cast<std::size_t>(std::max(1.0, std::round(length))), '#');
  }
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(std::max(1.0, std::round(length * 8)));
  std::string text;
  for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

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
