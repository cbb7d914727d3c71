// SPDX-License-Identifier: Apache-2.0
// What an output stream can show: colour, UTF-8, how wide. Decided once in main, handed to the
// renderers, so that no renderer looks at the environment itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

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

}  // namespace shardwright::cli
