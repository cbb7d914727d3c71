// SPDX-License-Identifier: Apache-2.0
// Pieces of HTML and SVG that are also XML: every element is closed, every name of the user's is
// escaped, nothing refers to anything outside the page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli::html {

/// `text` for content and for quoted attributes: markup is escaped, control characters and invalid
/// bytes are replaced.
std::string escape(std::string_view text);

/// `<tag class="style">escaped text</tag>`; without a style no class.
std::string element(std::string_view tag, std::string_view text, std::string_view style = "");

/// A section with a heading and a body that is HTML already; empty when the body is.
std::string section(std::string_view title, std::string_view body);

/// A table of escaped cells. Cells of columns from `first_number` on stand right; `marked` rows are
/// highlighted. No rows: no table.
std::string table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows, std::size_t first_number,
                  const std::vector<std::size_t>& marked = {});

/// Sentences as a list.
std::string list(const std::vector<std::string>& sentences);

/// A drawing of `width` x `height` units that takes the width of the page. `label` says to a screen
/// reader what it shows.
std::string svg(double width, double height, std::string_view label, std::string_view body);
std::string rect(double x, double y, double width, double height, std::string_view style,
                 std::string_view tip = "");
std::string line(double x1, double y1, double x2, double y2, std::string_view style);
/// `anchor`: start, middle or end.
std::string text(double x, double y, std::string_view words, std::string_view anchor = "start",
                 std::string_view style = "");

/// Coloured squares with names, for the classes of a drawing.
struct Key {
  std::string style, name, value;
};
std::string legend(const std::vector<Key>& keys);

/// Round numbers from 0 to `end` at a distance of 1, 2 or 5 times a power of ten, about `count`.
std::vector<double> ticks(double end, int count);

/// About how wide `words` are in a drawing, at its font of 11 units.
double text_width(std::string_view words);

/// The whole page.
std::string page(std::string_view title, std::string_view body);

}  // namespace shardwright::cli::html
