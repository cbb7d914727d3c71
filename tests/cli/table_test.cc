// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>

#include "cli/render/text/terminal.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

constexpr Terminal kUtf8{.interactive = false, .color = false, .utf8 = true, .columns = 100};
constexpr Terminal kAscii{.interactive = false, .color = false, .utf8 = false, .columns = 100};

Table strategies() {
  Table table({"strategy", "time", "error"});
  table.add_row({"yafsdp", "6.95 s", "±0.3"});
  table.add_row({"fsdp1", "10.21 s", "–"});
  return table;
}

TEST(Table, NumbersStandRightAndTextLeft) {
  EXPECT_EQ(strategies().render(kUtf8),
            "strategy     time  error\n"
            "────────────────────────\n"
            "yafsdp     6.95 s   ±0.3\n"
            "fsdp1     10.21 s      –\n");
}

TEST(Table, PlainAsciiWhereTheLocaleIsNotUtf8) {
  EXPECT_EQ(strategies().render(kAscii),
            "strategy     time   error\n"
            "-------------------------\n"
            "yafsdp     6.95 s  +/-0.3\n"
            "fsdp1     10.21 s       -\n");
}

TEST(Table, ColorsDoNotMoveColumns) {
  Table table({left("a"), right("b")});
  table.add_row({{"x", Style::kGreen}, {"1", Style::kRed}});
  table.add_row({"long", "22"});
  Terminal color = kUtf8;
  color.color = true;
  EXPECT_EQ(table.render(color),
            "\x1b[1ma\x1b[0m      \x1b[1mb\x1b[0m\n"
            "────────\n"
            "\x1b[32mx\x1b[0m      \x1b[31m1\x1b[0m\n"
            "long  22\n");
}

TEST(Table, WideTextWrapsAndNumbersStayWhole) {
  Table table({"what", "bytes", "why"});
  table.add_row({"gradients", "123456789012", std::string(20, 'w') + " " + std::string(150, 'v')});
  table.add_row({"optimizer", "1",
                 "two moments in fp32 and the master weights beside them, sharded over all ranks"});
  std::istringstream lines(table.render(kUtf8));
  int count = 0;
  bool whole_number = false;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(display_width(line), 100) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
    whole_number = whole_number || line.find("123456789012") != std::string::npos;
  }
  EXPECT_GT(count, 4);
  EXPECT_TRUE(whole_number);
}

TEST(Table, NamesStayWholeWhereWordsGiveWay) {
  const std::string name = "  " + std::string(40, 'n');
  Table table({"value", "source"});
  table.add_row(
      {name, "fitted to the iteration times of published runs that see it, and to no other"});
  table.add_row({"  short", std::string(30, 's')});
  const std::string text = table.render(kUtf8);
  EXPECT_NE(text.find(name + "  "), std::string::npos) << text;
  EXPECT_NE(text.find(std::string(30, 's')), std::string::npos) << text;
}

TEST(Table, RuleAndMissingCells) {
  Table table({"", ""});
  table.add_row({"a", "1"});
  table.add_rule();
  table.add_row({"sum"});
  EXPECT_EQ(table.render(kAscii), "a    1\n------\nsum\n");
}

TEST(Table, ANameCannotBreakTheTable) {
  Table table({"name", "n"});
  table.add_row({"two\nlines\x1b[2J", "1"});
  const std::string text = table.render(kUtf8);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

}  // namespace
}  // namespace shardwright::cli
