// SPDX-License-Identifier: Apache-2.0
// What an output stream can show: colour, UTF-8, how wide. Decided once in main, handed to the
// renderers, so that no renderer looks at the environment itself.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

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

}  // namespace shardwright::cli
