// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "cli/text.h"
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
