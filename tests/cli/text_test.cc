// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <gtest/gtest.h>

#include <random>

namespace shardwright::cli {
namespace {

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(display_width("tokens/s"), 8);
  EXPECT_EQ(display_width("±3 µs"), 5);
  EXPECT_EQ(display_width("模型"), 4);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("\xff\xfe"), 2);
  EXPECT_EQ(display_width("\xe2\x89"), 2) << "a truncated sequence is two invalid bytes";
}

TEST(Printable, NeverLetsATerminalObeyAName) {
  EXPECT_EQ(printable("a\x1b[31mb\tc\n", true), "a [31mb c ");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m",
                      true),
            " 31m")
      << "the C1 form of the same escape";
  EXPECT_EQ(printable("a\u202eb\u2028c\u2066d", true), "a b c d");
  EXPECT_EQ(printable("\xc0\xaf", true), "??") << "overlong '/'";
}

TEST(Printable, SpellsSymbolsInAscii) {
  EXPECT_EQ(printable("2× ≤ 3 µs…", false), "2x <= 3 us...");
  EXPECT_EQ(printable("2× ≤ 3 µs…", true), "2× ≤ 3 µs…");
  EXPECT_EQ(printable("模", false), "?");
}

TEST(Wrap, BreaksAtSpacesAndInsideLongWords) {
  EXPECT_EQ(wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrap("abcdefgh ij", 3), (std::vector<std::string>{"abc", "def", "gh", "ij"}));
  EXPECT_EQ(wrap("", 5), (std::vector<std::string>{""}));
  EXPECT_EQ(wrap("模型", 1), (std::vector<std::string>{"模", "型"}));
}

TEST(Shorten, SaysThatSomethingWasCut) {
  EXPECT_EQ(shorten("abcdef", 6, true), "abcdef");
  EXPECT_EQ(shorten("abcdef", 4, true), "abc…");
  EXPECT_EQ(shorten("abcdef", 4, false), "a...");
  EXPECT_EQ(shorten("abcdef", 2, false), "ab");
}

TEST(Text, RandomBytesStayWithinTheirColumns) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 40, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random() & 0xFFU);
    const std::string text = printable(bytes, true);
    const int columns = 2 + static_cast<int>(random() % 20);
    EXPECT_LE(display_width(shorten(text, columns, true)), columns);
    for (const std::string& line : wrap(text, columns)) EXPECT_LE(display_width(line), columns);
    for (const char c : printable(bytes, false)) EXPECT_TRUE(c >= ' ' && c < 0x7F);
  }
}

}  // namespace
}  // namespace shardwright::cli
