// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/table.h"

#include <algorithm>
#include <cctype>
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

}  // namespace shardwright::cli
