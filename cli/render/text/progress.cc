// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/text.h"

namespace shardwright::cli {
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
  constexpr int kBarColumns = 20;
  const double fraction =
      std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const int filled = static_cast<int>(fraction * kBarColumns);
  const double elapsed_s = std::chrono::duration<double>(now - begin_).count();
  return fmt::format("{} {}/{} [{:#<{}}{:.<{}}] {:.0f} %{}{}", label_, done, total_, "", filled, "",
                     kBarColumns - filled, fraction * 100.0, seconds_left(done, total_, elapsed_s),
                     end);
}

}  // namespace shardwright::cli
