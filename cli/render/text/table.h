// SPDX-License-Identifier: Apache-2.0
// The one table of the command line: columns of text and numbers that fit the terminal.
//
// Numbers stand right, text left. A table wider than the terminal gives way in its widest text
// columns, whose cells then take several lines; numbers are never cut. Without UTF-8 everything is
// plain ASCII.
//
//   Table table({{"strategy"}, {"iteration"}, {"tokens/s"}});
//   table.add_row({"yafsdp", "6.95 s", {"75423", Style::kGreen}});
//   fmt::print("{}", table.render(context.out));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// kAuto is right when every cell of the column reads as a number (an optional unit may follow),
/// else left.
enum class Align { kAuto, kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kAuto;
};

/// A cell's text, and a style where the terminal has colour.
struct Cell {
  Cell(std::string cell_text)
      : text(std::move(cell_text)) {}               // NOLINT(google-explicit-constructor)
  Cell(const char* cell_text) : text(cell_text) {}  // NOLINT(google-explicit-constructor)
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
