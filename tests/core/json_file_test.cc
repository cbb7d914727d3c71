// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/json_file.h"

#include "tests/core/common.h"

namespace shardwright {
namespace {

JsonFile parse(std::string_view text) {
  return JsonFile::parse(text, "m.json");
}

TEST(JsonFile, ReadsEveryKind) {
  const JsonFile file = parse(R"({"name":"tiny","layers":4,"eps":1e-5,"tied":true,"none":null})");
  const JsonReader root = file.root();
  EXPECT_EQ(root.require<std::string>("name"), "tiny");
  EXPECT_EQ(root.require<int>("layers"), 4);
  EXPECT_EQ(root.require<std::int64_t>("layers"), 4);
  EXPECT_EQ(root.require<double>("layers"), 4.0);
  EXPECT_EQ(root.require<double>("eps"), 1e-5);
  EXPECT_TRUE(root.require<bool>("tied"));
  EXPECT_EQ(root.optional<int>("absent", 7), 7);
  EXPECT_EQ(root.optional<int>("none", 7), 7);
  EXPECT_FALSE(root.find<int>("none"));
  EXPECT_FALSE(root.has("none"));
  EXPECT_THAT(root.keys(), ElementsAre("eps", "layers", "name", "none", "tied"));
}

TEST(JsonFile, IntegersAreNeverRounded) {
  const JsonFile file = parse(
      R"({"whole":4096.0,"tokens":2e12,"half":3.5,"huge":1e30,"max":9223372036854775807,
          "over":9223372036854775808,"min":-9223372036854775808,"int_over":2147483648,"text":"4"})");
  const JsonReader root = file.root();
  EXPECT_EQ(root.require<std::int64_t>("whole"), 4096);
  EXPECT_EQ(root.require<std::int64_t>("tokens"), 2'000'000'000'000);
  EXPECT_EQ(root.require<std::int64_t>("max"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(root.require<std::int64_t>("min"), std::numeric_limits<std::int64_t>::min());
  const auto failure = [&](const char* key) {
    return refusal_of([&] { root.require<std::int64_t>(key); });
  };
  EXPECT_EQ(failure("half"), "m.json: half is 3.5, expected an integer");
  EXPECT_EQ(failure("huge"), "m.json: huge is 1e+30, expected an integer that fits 64 bits");
  EXPECT_EQ(failure("over"),
            "m.json: over is 9223372036854775808, expected an integer that fits 64 bits");
  EXPECT_EQ(failure("text"), "m.json: text is \"4\", expected an integer");
  EXPECT_EQ(refusal_of([&] { root.require<int>("int_over"); }),
            "m.json: int_over is 2147483648, expected an integer from -2147483648 to 2147483647");
}

TEST(JsonFile, RangesSayWhatIsAccepted) {
  const JsonFile file = parse(R"({"n":0,"p":1.5})");
  const JsonReader root = file.root();
  EXPECT_EQ(root.require<int>("n", at_least(0)), 0);
  EXPECT_EQ(root.require<double>("p", at_least(1)), 1.5);
  EXPECT_EQ(refusal_of([&] { root.require<int>("n", at_least(1)); }),
            "m.json: n is 0, expected an integer of at least 1");
  EXPECT_EQ(refusal_of([&] { root.require<int>("n", between(2, 8)); }),
            "m.json: n is 0, expected an integer from 2 to 8");
  EXPECT_EQ(refusal_of([&] { root.find<double>("n", above(0.0)); }),
            "m.json: n is 0, expected a number above 0");
  EXPECT_EQ(root.optional<int>("absent", -1, at_least(1)), -1);
}

TEST(JsonFile, PathsNameNestedValues) {
  const JsonFile file = parse(R"({"a":{"list":[{"size":1},{"size":"x"}],"k.v":[1]}})");
  const JsonReader a = file.root().require_object("a");
  const std::vector<JsonReader> list = a.require_array("list");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].require<int>("size"), 1);
  EXPECT_EQ(refusal_of([&] { list[1].require<int>("size"); }),
            "m.json: a.list[1].size is \"x\", expected an integer");
  EXPECT_EQ(refusal_of([&] { list[1].require<int>("count"); }),
            "m.json: a.list[1].count is missing, but it is required");
  EXPECT_EQ(refusal_of([&] { a.require_object("k.v"); }),
            "m.json: a[\"k.v\"] is [1], expected an object");
  EXPECT_THAT(a.require_list<int>("k.v"), ElementsAre(1));
  EXPECT_EQ(refusal_of([&] { file.root().require_list<int>("a"); }),
            "m.json: a is an object of 2 keys, expected an array");
}

TEST(JsonFile, MissingAndNullAreToldApart) {
  const JsonFile file = parse(R"({"null":null})");
  EXPECT_EQ(refusal_of([&] { file.root().require<int>("null"); }),
            "m.json: null is null, but it is required");
  EXPECT_EQ(refusal_of([&] { file.root().require_array("absent"); }),
            "m.json: absent is missing, but it is required");
  EXPECT_FALSE(file.root().find_object("null"));
  EXPECT_FALSE(file.root().find_array("absent"));
}

TEST(JsonFile, RootOfAnotherKindIsAnError) {
  const JsonFile file = parse("[1,2]");
  EXPECT_EQ(refusal_of([&] { file.root().require<int>("n"); }),
            "m.json: the file is [1,2], expected an object");
  EXPECT_EQ(file.root().elements()[1].value<int>(), 2);
  EXPECT_EQ(refusal_of([&] { file.root().elements()[1].value<int>(at_least(3)); }),
            "m.json: [1] is 2, expected an integer of at least 3");
}

TEST(JsonFile, ChoicesAndUnknownKeysListWhatIsAccepted) {
  const JsonFile file = parse(R"({"dtype":"fp8","extra":1,"_comment":"why"})");
  const JsonReader root = file.root();
  EXPECT_EQ(refusal_of([&] {
              root.require_choice("dtype", {"bf16", "fp32"});
            }),
            "m.json: dtype is \"fp8\", expected one of bf16, fp32");
  EXPECT_EQ(root.require_choice("dtype", {"bf16", "fp8"}), "fp8");
  EXPECT_THAT(root.unknown_keys({"dtype"}), ElementsAre("extra"));
  EXPECT_EQ(refusal_of([&] {
              root.reject_unknown_keys({"dtype", "size"});
            }),
            "m.json: extra is not a known key, expected one of dtype, size");
  root.reject_unknown_keys({"dtype", "extra"});
  EXPECT_EQ(refusal_of([&] { root.fail("dtype", "a type this GPU has"); }),
            "m.json: dtype is \"fp8\", expected a type this GPU has");
}

TEST(JsonFile, SyntaxErrorsNameLineAndColumn) {
  EXPECT_THAT(refusal_of([] { parse("{\n  \"a\": 1,\n  \"b\" 2\n}"); }),
              HasSubstr("m.json: line 3, column 7: syntax error while parsing object separator"));
  EXPECT_THAT(refusal_of([] { parse(""); }), HasSubstr("m.json: line 1, column 1: "));
  EXPECT_THAT(refusal_of([] { parse("{\"a\": NaN}"); }), HasSubstr("line 1, column 7"));
  EXPECT_THAT(refusal_of([] { parse("{} {}"); }), HasSubstr("line 1, column 4"));
  EXPECT_THAT(refusal_of([] { parse(std::string("{}\0 what follows", 16)); }),
              HasSubstr("line 1, column 3: holds a byte of 0"));
  EXPECT_THAT(refusal_of([] { parse("{\"a\": 1e999}"); }), HasSubstr("'1e999'"));
}

TEST(JsonFile, RefusesRepeatedKeysAndDeepNesting) {
  EXPECT_EQ(refusal_of([] { parse(R"({"a":{"b":1,"c":{"b":1},"b":2}})"); }),
            "m.json: the key \"b\" occurs twice in one object, expected once");
  EXPECT_NO_THROW(parse(std::string(64, '[') + std::string(64, ']')));
  EXPECT_EQ(refusal_of([] { parse(std::string(100'000, '[')); }),
            "m.json: nests deeper than the 64 levels accepted");
}

TEST(JsonFile, LoadChecksTheFile) {
  const std::filesystem::path path =
      shardwright::testing::temp_folder() / "shardwright_json_file_test.json";
  std::ofstream(path) << "\xEF\xBB\xBF{\"n\": 3}";
  EXPECT_EQ(JsonFile::load(path).root().require<int>("n"), 3);
  EXPECT_EQ(refusal_of([&] { JsonFile::load(path, {.max_bytes = 5}); }),
            path.string() + ": is larger than 5 bytes, the most accepted for a file of this kind");
  EXPECT_THAT(refusal_of([&] { JsonFile::load(path.parent_path()); }), HasSubstr("is a folder"));
  std::ofstream(path) << "\x1f\x8b\x08";
  EXPECT_EQ(refusal_of([&] { JsonFile::load(path); }),
            path.string() + ": is packed with gzip, expected JSON; unpack it with gunzip first");
  std::filesystem::remove(path);
  EXPECT_THAT(refusal_of([&] { JsonFile::load(path); }),
              HasSubstr(path.string() + ": cannot read this file: No such file"));
}

/// Damaged files end in an Error or in values that can be read, never in anything else.
TEST(JsonFile, SurvivesRandomDamage) {
  const std::string good =
      R"({"hidden_size": 4096, "rope": {"theta": 1e4, "type": null}, "list": [1, -2.5, "\u00e9", true]})";
  const std::string_view bytes = "{}[]\",:\\0123456789.eE+-truefalsn \n\xff\x01";
  std::mt19937 random(7);
  int parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    try {
      const JsonFile file = parse(damaged(good, bytes, random));
      ++parsed;
      const JsonReader root = file.root();
      const auto size = root.optional<std::int64_t>("hidden_size", 1, at_least(1));
      EXPECT_GE(size, 1);
      if (const auto rope = root.find_object("rope")) rope->optional<double>("theta", 1.0);
      for (const JsonReader& element : root.require_array("list")) element.value<double>();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("m.json: "));
    }
  }
  EXPECT_GT(parsed, 1'000);  // the loop reaches the readers, not only the parser
}

}  // namespace
}  // namespace shardwright
