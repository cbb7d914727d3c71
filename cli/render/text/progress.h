// SPDX-License-Identifier: Apache-2.0
// One line of progress for a person who waits: "validate 37/119 [######..........] 31 %, 4 s left".
//
// Shown only on a terminal, on stderr, rewritten in place at most ten times a second and wiped at
// the end, so that neither logs nor pipes ever see it.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "cli/render/text/terminal.h"
#include "cli/streams.h"

namespace shardwright::cli {

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
