// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/terminal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cli/render/text/quantity.h"
#include "cli/text.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

TEST(ColorMode, AcceptsThreeWords) {
  EXPECT_EQ(parse_color_mode("auto"), ColorMode::kAuto);
  EXPECT_EQ(parse_color_mode("always"), ColorMode::kAlways);
  EXPECT_EQ(parse_color_mode("never"), ColorMode::kNever);
  EXPECT_THROW(parse_color_mode("yes"), Error);
}

TEST(Terminal, AFileIsNotInteractiveAndHasNoColor) {
  std::FILE* file = std::tmpfile();
  EXPECT_FALSE(describe_terminal(file, ColorMode::kAuto).interactive);
  EXPECT_FALSE(describe_terminal(file, ColorMode::kAuto).color);
  EXPECT_TRUE(describe_terminal(file, ColorMode::kAlways).color);
  EXPECT_EQ(describe_terminal(file, ColorMode::kAuto).columns, 100);
  std::fclose(file);
}

TEST(Terminal, TheFirstLocaleVariableThatIsSetDecides) {
  const auto utf8 = [](const char* all, const char* ctype, const char* lang) {
    setenv("LC_ALL", all, 1);
    setenv("LC_CTYPE", ctype, 1);
    setenv("LANG", lang, 1);
    return describe_terminal(stdout, ColorMode::kNever).utf8;
  };
  EXPECT_TRUE(utf8("", "", "de_DE.UTF-8"));
  EXPECT_TRUE(utf8("C.utf8", "C", "C"));
  EXPECT_FALSE(utf8("C", "en_US.UTF-8", "en_US.UTF-8"));
  EXPECT_FALSE(utf8("", "", ""));
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
}

TEST(Paint, LeavesTextAloneWithoutColor) {
  EXPECT_EQ(paint(Terminal{}, Style::kRed, "x"), "x");
  EXPECT_EQ(paint(Terminal{.color = true}, Style::kRed, "x"), "\x1b[31mx\x1b[0m");
}

TEST(Heading, StandsApart) {
  EXPECT_EQ(heading(Terminal{}, "Memory"), "\nMemory\n");
  EXPECT_EQ(heading(Terminal{.color = true}, "x"), "\n\x1b[1mx\x1b[0m\n");
}

TEST(Bar, IsAsLongAsItsShare) {
  const Terminal ascii{};
  EXPECT_EQ(bar(0.5, 10, ascii), "#####");
  EXPECT_EQ(bar(1, 10, ascii), "##########");
  EXPECT_EQ(bar(7, 10, ascii), "##########");
  const Terminal utf8{.utf8 = true};
  EXPECT_EQ(bar(0.25, 10, utf8), "██▌");
  EXPECT_EQ(display_width(bar(1, 10, utf8)), 10);
}

TEST(Bar, ShowsSomethingForAlmostNothing) {
  EXPECT_EQ(bar(1e-6, 10, Terminal{}), "#");
  EXPECT_EQ(bar(1e-6, 10, Terminal{.utf8 = true}), "▏");
  EXPECT_EQ(bar(0, 10, Terminal{}), "");
}

TEST(Percent, HasTheDecimalsAskedFor) {
  EXPECT_EQ(percent(0.3961), "39.6 %");
  EXPECT_EQ(percent(0.3961, 0), "40 %");
}

using std::chrono::milliseconds;

// What a Progress of 10 steps writes, with a clock that advances `step` before each update.
std::string drawn(const Terminal& terminal, milliseconds step, int updates) {
  char* buffer = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&buffer, &size);
  Progress::Clock::time_point now{};
  {
    Progress progress(terminal, "validate", 10, stream, [&now] { return now; });
    for (int done = 1; done <= updates; ++done) {
      now += step;
      progress.update(done);
    }
  }
  std::fclose(stream);
  std::string text(buffer, size);
  std::free(buffer);  // NOLINT: open_memstream allocates with malloc
  return text;
}

TEST(Progress, WritesNothingWhereNobodyWatches) {
  EXPECT_EQ(drawn(Terminal{.interactive = false}, milliseconds{500}, 10), "");
}

TEST(Progress, RewritesOneLineAndWipesIt) {
  const std::string text =
      drawn(Terminal{.interactive = true, .columns = 80}, milliseconds{500}, 2);
  const std::string first = "validate 1/10 [##..................] 10 %";
  const std::string second = "validate 2/10 [####................] 20 %, 4 s left";
  EXPECT_EQ(text, "\r" + first + "\r" + second + "\r" + std::string(second.size(), ' ') + "\r");
}

TEST(Progress, DrawsAtMostTenTimesASecond) {
  const std::string text =
      drawn(Terminal{.interactive = true, .columns = 80}, milliseconds{30}, 10);
  // 300 ms in all: drawn at 120 ms and 240 ms, then wiped with two more returns.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 4);
}

TEST(Progress, NeverAsWideAsTheTerminal) {
  const std::string text =
      drawn(Terminal{.interactive = true, .columns = 40}, milliseconds{500}, 1);
  EXPECT_EQ(text.find('\r', 1), 40U);
}

}  // namespace
}  // namespace shardwright::cli
