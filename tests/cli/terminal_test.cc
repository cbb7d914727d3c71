// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/terminal.h"

#include <gtest/gtest.h>

#include <cstdlib>

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

}  // namespace
}  // namespace shardwright::cli
