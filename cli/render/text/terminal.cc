// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "cli/text.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {

namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

// The first of the three that is set to something decides, as in POSIX.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value{environment(name)};
    if (value.empty()) continue;
    std::erase(value, '-');
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf8") != std::string::npos;
  }
  return false;
}

int terminal_columns(int descriptor) {
  constexpr int kWidest = 100;
  constexpr int kNarrowest = 40;
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWidest;
  return std::clamp<int>(size.ws_col, kNarrowest, kWidest);
}

}  // namespace

ColorMode parse_color_mode(std::string_view text) {
  if (text == "auto") return ColorMode::kAuto;
  if (text == "always") return ColorMode::kAlways;
  if (text == "never") return ColorMode::kNever;
  throw Error(fmt::format("--color is '{}', but it must be auto, always or never.", text),
              ExitCode::kUsage);
}

Terminal describe_terminal(std::FILE* stream, ColorMode mode) {
  const int descriptor = fileno(stream);
  Terminal terminal;
  terminal.interactive = isatty(descriptor) != 0;
  terminal.utf8 = locale_is_utf8();
  if (terminal.interactive) terminal.columns = terminal_columns(descriptor);
  switch (mode) {
    case ColorMode::kAlways:
      terminal.color = true;
      break;
    case ColorMode::kNever:
      terminal.color = false;
      break;
    case ColorMode::kAuto:
      terminal.color =
          terminal.interactive && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
      break;
  }
  return terminal;
}

std::string paint(const Terminal& terminal, Style style, std::string_view text) {
  if (!terminal.color) return std::string{text};
  int code = 0;
  switch (style) {
    case Style::kBold:
      code = 1;
      break;
    case Style::kDim:
      code = 2;
      break;
    case Style::kRed:
      code = 31;
      break;
    case Style::kGreen:
      code = 32;
      break;
    case Style::kYellow:
      code = 33;
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string heading(const Terminal& terminal, std::string_view text) {
  return fmt::format("\n{}\n", paint(terminal, Style::kBold, text));
}

std::string paragraph(std::string_view text, const Terminal& terminal, std::string_view indent) {
  std::string result;
  const int columns = terminal.columns - static_cast<int>(indent.size());
  for (const std::string& line : wrap(printable(text, terminal.utf8), columns)) {
    result += fmt::format("{}{}\n", result.empty() ? "" : indent, line);
  }
  return result;
}

std::string sentences_text(const std::vector<std::string>& sentences, const Terminal& terminal) {
  std::string text;
  for (const std::string& sentence : sentences) text += paragraph(sentence, terminal);
  return text;
}

namespace {

constexpr std::chrono::milliseconds kInterval{100};

std::string seconds_left(std::int64_t done, std::int64_t total, double elapsed_s) {
  // The first second says little about the rest.
  if (done <= 0 || elapsed_s < 1.0) return {};
  const double left = elapsed_s / static_cast<double>(done) * static_cast<double>(total - done);
  return left < 60.0 ? fmt::format(", {:.0f} s left", left)
                     : fmt::format(", {:.0f} min left", left / 60.0);
}

}  // namespace

Progress::Progress(const Terminal& terminal, std::string_view label, std::int64_t total,
                   std::FILE* stream, std::function<Clock::time_point()> now)
    : terminal_(terminal),
      label_(printable(label, terminal.utf8)),
      total_(total),
      stream_(stream),
      now_(std::move(now)),
      begin_(now_()),
      next_draw_(begin_ + kInterval) {}

Progress::~Progress() {
  finish();
}

void Progress::update(std::int64_t done, std::string_view note) {
  if (!terminal_.interactive) return;
  const Clock::time_point now = now_();
  if (now < next_draw_) return;
  next_draw_ = now + kInterval;
  // A line as wide as the terminal would wrap when the cursor steps past it.
  const std::string text = shorten(line(done, note, now), terminal_.columns - 1, terminal_.utf8);
  const int columns = display_width(text);
  fmt::print(stream_, "\r{}{:{}}", text, "", std::max(0, shown_columns_ - columns));
  std::fflush(stream_);
  shown_columns_ = columns;
}

void Progress::finish() {
  if (shown_columns_ == 0) return;
  fmt::print(stream_, "\r{:{}}\r", "", shown_columns_);
  std::fflush(stream_);
  shown_columns_ = 0;
}

std::string Progress::line(std::int64_t done, std::string_view note, Clock::time_point now) const {
  const std::string end =
      note.empty() ? std::string{} : fmt::format("; {}", printable(note, terminal_.utf8));
  if (total_ <= 0) return fmt::format("{} {}{}", label_, done, end);
  constexpr int kProgressColumns = 20;
  const double fraction =
      std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const int filled = static_cast<int>(fraction * kProgressColumns);
  const double elapsed_s = std::chrono::duration<double>(now - begin_).count();
  return fmt::format("{} {}/{} [{:#<{}}{:.<{}}] {:.0f} %{}{}", label_, done, total_, "", filled, "",
                     kProgressColumns - filled, fraction * 100.0,
                     seconds_left(done, total_, elapsed_s), end);
}

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
    const auto at =
        static_cast<std::size_t>(kMargin) + 1 + static_cast<std::size_t>(across.at(tick));
    if (at < free || at + label.size() > ticks.size()) continue;
    ticks.replace(at, label.size(), label);
    free = at + label.size() + 1;
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  return text + line + "\n" + ticks + "  " + x.title + "\n";
}

}  // namespace shardwright::cli
