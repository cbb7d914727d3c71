// SPDX-License-Identifier: Apache-2.0
// Text as a terminal shows it: how many columns it takes, how it breaks into lines, what is left of
// it where only ASCII can be shown. Renderers build on these and never count bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli {

/// Columns that `text` takes: combining marks none, East Asian wide characters two, all others one.
/// A byte that is not valid UTF-8 counts as one character.
int display_width(std::string_view text);

/// `text` with what a terminal would obey taken out: each character that is_control (words.h)
/// becomes a space, each invalid byte '?'. Without `utf8`, symbols with a customary spelling get it
/// ("×" is x, "≤" is <=) and every other character outside ASCII becomes '?'.
std::string printable(std::string_view text, bool utf8);

/// Lines of at most `columns` (at least 1), broken at spaces where possible; never empty.
std::vector<std::string> wrap(std::string_view text, int columns);

/// `text` cut to at most `columns`, with an ellipsis where something was cut.
std::string shorten(std::string_view text, int columns, bool utf8);

}  // namespace shardwright::cli
