// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

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

}  // namespace shardwright::cli
