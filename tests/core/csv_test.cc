// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/csv.h"

#include "tests/core/common.h"

namespace shardwright {
namespace {

CsvTable parse_table(std::string text) {
  return CsvTable::parse(std::move(text), "t.csv");
}

TEST(Csv, ReadsValuesByColumnName) {
  const CsvTable table = parse_table("id,size,time_s\na,4096,1.5\nb,2e3,\n");
  EXPECT_THAT(table.columns(), ElementsAre("id", "size", "time_s"));
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[0].require<std::string>("id"), "a");
  EXPECT_EQ(table[0].require<std::int64_t>("size"), 4096);
  EXPECT_EQ(table[0].require<double>("time_s"), 1.5);
  EXPECT_EQ(table[1].require<int>("size"), 2000);
  EXPECT_FALSE(table[1].find<double>("time_s"));
  EXPECT_EQ(table[1].optional("time_s", -1.0), -1.0);
  EXPECT_EQ(table[1].text("time_s"), "");
}

TEST(Csv, QuotesMayHoldCommasQuotesAndLines) {
  const CsvTable table = parse_table("a,\"b,c\"\n\"say \"\"no\"\"\",\"two\nlines\"\n\"\",3\n");
  EXPECT_THAT(table.columns(), ElementsAre("a", "b,c"));
  EXPECT_EQ(table[0].text("a"), "say \"no\"");
  EXPECT_EQ(table[0].text("b,c"), "two\nlines");
  EXPECT_EQ(table[1].text("a"), "");
  EXPECT_EQ(table[1].require<int>("b,c"), 3);
  EXPECT_EQ(table[0].line(), 2U);
  EXPECT_EQ(table[1].line(), 4U);
}

TEST(Csv, AcceptsBomCrlfBlankLinesAndNoLastLineEnd) {
  const CsvTable table = parse_table(
      "\xEF\xBB\xBF"
      "a,b\r\n\r\n1,\r\n\n3,4");
  EXPECT_THAT(table.columns(), ElementsAre("a", "b"));
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[0].text("b"), "");
  EXPECT_EQ(table[0].line(), 3U);
  EXPECT_EQ(table[1].require<int>("b"), 4);
  EXPECT_EQ(table[1].line(), 5U);
  EXPECT_EQ(parse_table("a,b\n1,").size(), 1U);
}

TEST(Csv, ErrorsNameFileLineAndColumn) {
  const CsvTable table = parse_table("id,size\na,3.5\nb,12 GB\nc,\nd,5000000000\n");
  EXPECT_EQ(refusal_of([&] { table[0].require<int>("size"); }),
            "t.csv, line 2, column size: found \"3.5\", expected an integer");
  EXPECT_EQ(refusal_of([&] { table[1].find<double>("size"); }),
            "t.csv, line 3, column size: found \"12 GB\", expected a number");
  EXPECT_EQ(refusal_of([&] { table[2].require<double>("size"); }),
            "t.csv, line 4, column size: found nothing, expected a number");
  EXPECT_EQ(refusal_of([&] { table[3].require<int>("size"); }),
            "t.csv, line 5, column size: found \"5000000000\", expected an integer");
  EXPECT_EQ(refusal_of([&] { table[0].text("price"); }),
            "t.csv, line 1: there is no column \"price\", found id, size");
  EXPECT_EQ(refusal_of([&] { table[0].fail("id", "a known GPU"); }),
            "t.csv, line 2, column id: found \"a\", expected a known GPU");
}

TEST(Csv, MalformedTablesAreErrors) {
  EXPECT_EQ(refusal_of([] { parse_table("a,b\n1,2\n1,2,3\n"); }),
            "t.csv, line 3: the row has 3 fields, expected 2 as in the header");
  EXPECT_THAT(refusal_of([] { parse_table("a,b\n1\n"); }),
              HasSubstr("line 2: the row has 1 fields"));
  EXPECT_THAT(refusal_of([] { parse_table("a\n\"1\n2\n"); }),
              HasSubstr("line 2: a quoted field is never"));
  EXPECT_THAT(refusal_of([] { parse_table("a\n\"1\"2\n"); }),
              HasSubstr("line 2: text follows a closing"));
  EXPECT_THAT(refusal_of([] { parse_table("a\n1\"2\n"); }), HasSubstr("line 2: a quote, NUL or"));
  EXPECT_THAT(refusal_of([] { parse_table("a\n1\r2\n"); }), HasSubstr("line 2: a quote, NUL or"));
  EXPECT_THAT(refusal_of([] { parse_table(std::string("a\n1\0\n", 5)); }),
              HasSubstr("a quote, NUL or"));
  EXPECT_THAT(refusal_of([] { parse_table("a,b,a\n"); }), HasSubstr("two columns are named \"a\""));
  EXPECT_THAT(refusal_of([] { parse_table("a,,b\n"); }), HasSubstr("column 2 has no name"));
  EXPECT_THAT(refusal_of([] { parse_table(""); }), HasSubstr("the file is empty"));
  EXPECT_THAT(refusal_of([] { parse_table("\n\n"); }), HasSubstr("the file is empty"));
}

TEST(Csv, LoadNamesTheFile) {
  const std::filesystem::path path =
      shardwright::testing::temp_folder() / "shardwright_csv_test.csv";
  std::ofstream(path) << "a\n1\n";
  EXPECT_EQ(CsvTable::load(path)[0].require<int>("a"), 1);
  EXPECT_THAT(refusal_of([&] { CsvTable::load(path, 3); }), HasSubstr("larger than 3 bytes"));
  std::filesystem::remove(path);
  EXPECT_THAT(refusal_of([&] { CsvTable::load(path); }), HasSubstr(path.string()));
}

std::string quote(std::string_view field) {
  std::string result = "\"";
  for (const char c : field) result.append(c == '"' ? 2 : 1, c);
  return result + '"';
}

TEST(Csv, AnyTextSurvivesQuoting) {
  std::mt19937 random(3);
  const std::string_view bytes = "a,\"\n\r 1";
  for (int round = 0; round < 2'000; ++round) {
    std::vector<std::string> values(4);
    std::string text = "a,b\n";
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (auto length = random() % 6; length > 0; --length) {
        values[i] += bytes[random() % bytes.size()];
      }
      text += quote(values[i]) + (i % 2 == 0 ? "," : random() % 2 == 0 ? "\n" : "\r\n");
    }
    const CsvTable table = parse_table(text);
    ASSERT_EQ(table.size(), 2U);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(table[i / 2].text(i % 2 == 0 ? "a" : "b"), values[i]) << text;
    }
  }
}

TEST(Csv, HasNoMoreColumnsThanATableOfPeople) {
  std::string header = "c0";
  for (int i = 1; i < 100'000; ++i) header += ",c" + std::to_string(i);
  const std::string said = refusal_of([&] { parse_table(header + "\n"); });
  EXPECT_THAT(said, HasSubstr("100000 columns, expected at most 1000"));
  EXPECT_LT(said.size(), 200U);
}

/// Damaged tables end in an Error or in rows of the right width, never in anything else.
TEST(Csv, SurvivesRandomDamage) {
  const std::string good = "id,size,note\r\nx,12,\"a \"\"b\"\"\"\ny,3e2,\"c,\nd\"\n";
  const std::string_view bytes = ",\"\r\n01.e-ax\xEF\xFF\x01";
  std::mt19937 random(11);
  int parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    try {
      const CsvTable table = parse_table(damaged(good, bytes, random));
      ++parsed;
      for (std::size_t row = 0; row < table.size(); ++row) {
        for (const std::string& column : table.columns()) table[row].text(column);
        table[row].find<double>("size");
      }
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("t.csv, line "));
    }
  }
  EXPECT_GT(parsed, 1'000);
}

}  // namespace
}  // namespace shardwright
