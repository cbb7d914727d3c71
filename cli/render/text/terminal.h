// SPDX-License-Identifier: Apache-2.0
// What an output stream can show: colour, UTF-8, how wide. Decided once in main, handed to the
// renderers, so that no renderer looks at the environment itself.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/streams.h"

namespace shardwright::cli {

enum class ColorMode { kAuto, kAlways, kNever };

/// "auto", "always" or "never"; anything else throws Error (wrong usage).
ColorMode parse_color_mode(std::string_view text);

struct Terminal {
  bool interactive = false;  // a person is looking: the stream is a terminal
  bool color = false;        // ANSI colours may be written
  bool utf8 = false;         // the locale says UTF-8; otherwise plain ASCII
  int columns = 100;         // never above 100, so that output reads the same everywhere
};

/// kAuto colours a terminal unless NO_COLOR is set to something or TERM is "dumb".
Terminal describe_terminal(std::FILE* stream, ColorMode mode);

enum class Style { kBold, kDim, kRed, kGreen, kYellow };

/// `text` in that style where the terminal has colour, else `text` itself.
std::string paint(const Terminal& terminal, Style style, std::string_view text);

/// An empty line and `text` in bold: what stands above a section.
std::string heading(const Terminal& terminal, std::string_view text);

/// `text` as lines that the terminal can show, each but the first behind `indent`.
std::string paragraph(std::string_view text, const Terminal& terminal,
                      std::string_view indent = "");

/// Each sentence from the beginning of a line on, in lines as wide as the terminal.
std::string sentences_text(const std::vector<std::string>& sentences, const Terminal& terminal);

// One line of progress for a person who waits: "validate 37/119 [######..........] 31 %, 4 s left".
//
// Shown only on a terminal, on stderr, rewritten in place at most ten times a second and wiped at
// the end, so that neither logs nor pipes ever see it.

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `terminal` describes `stream`. `total` is the number of steps; 0 when it is not known.
  Progress(const Terminal& terminal, std::string_view label, std::int64_t total,
           std::FILE* stream = messages(), std::function<Clock::time_point()> now = Clock::now);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps are complete; cheap enough to call after each. `note` ends the line: what was
  /// found so far, how fast it goes.
  void update(std::int64_t done, std::string_view note = {});
  /// Wipes the line; the destructor does too.
  void finish();

 private:
  std::string line(std::int64_t done, std::string_view note, Clock::time_point now) const;

  Terminal terminal_;
  std::string label_;
  std::int64_t total_;
  std::FILE* stream_;
  std::function<Clock::time_point()> now_;
  Clock::time_point begin_;
  Clock::time_point next_draw_;
  int shown_columns_ = 0;
};

// The one table of the command line: columns of text and numbers that fit the terminal.
//
// Numbers stand right, text left. A table wider than the terminal gives way in its widest text
// columns, whose cells then take several lines; numbers are never cut. Without UTF-8 everything is
// plain ASCII.
//
//   Table table({"strategy", right("iteration"), "tokens/s"});
//   table.add_row({"yafsdp", "6.95 s", {"75423", Style::kGreen}});
//   fmt::print("{}", table.render(context.out));

/// kAuto is right when every cell of the column reads as a number (an optional unit may follow),
/// else left.
enum class Align { kAuto, kLeft, kRight };

struct Column {
  Column(std::string head, Align side = Align::kAuto)  // NOLINT(google-explicit-constructor)
      : title(std::move(head)), align(side) {}
  Column(const char* head) : title(head) {}  // NOLINT(google-explicit-constructor)

  std::string title;
  Align align = Align::kAuto;
};
inline Column left(std::string title) {
  return {std::move(title), Align::kLeft};
}
inline Column right(std::string title) {
  return {std::move(title), Align::kRight};
}

/// A cell's text, and a style where the terminal has colour.
struct Cell {
  Cell(std::string cell_text)
      : text(std::move(cell_text)) {}                    // NOLINT(google-explicit-constructor)
  Cell(const char* cell_text) : text(cell_text) {}       // NOLINT(google-explicit-constructor)
  Cell(std::string_view cell_text) : text(cell_text) {}  // NOLINT(google-explicit-constructor)
  template <std::integral Whole>
  Cell(Whole number) : text(std::to_string(number)) {}  // NOLINT(google-explicit-constructor)
  Cell(std::string cell_text, Style cell_style) : text(std::move(cell_text)), style(cell_style) {}

  std::string text;
  std::optional<Style> style;
};

class Table {
 public:
  /// Titles may be empty; when all are, the table has no head.
  explicit Table(std::vector<Column> columns);

  /// One cell per column; fewer leave the rest empty, more are a bug of the caller.
  void add_row(std::vector<Cell> cells);
  /// A line across the table before the next row, such as before a total.
  void add_rule();

  /// Every line ends in a newline and has no trailing spaces.
  std::string render(const Terminal& terminal) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<std::size_t> rules_;  // indices of the rows that a line stands before
};

// A bar as long as its share: "██████▌" or "######".

/// `share` of `columns`, between 0 and 1; anything above nothing shows at least something.
std::string bar(double share, int columns, const Terminal& out);

// Points on two logarithmic axes, in text.

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
