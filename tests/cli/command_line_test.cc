// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/command_line.h"

#include "tests/cli/program.h"
#include "tests/support/refusal.h"

namespace shardwright::cli {
namespace {

CommandLine::Parsed parse(CommandLine& line, std::vector<const char*> words) {
  words.insert(words.begin(), "x");
  return line.parse(static_cast<int>(words.size()), words.data());
}

TEST(CommandLine, SetsVariablesByTheirType) {
  CommandLine line("x", "");
  Command root = line.root();
  std::int64_t gpus = 8;
  std::optional<std::int64_t> layers;
  double rate = 0.5;
  std::string out = "kept";
  std::vector<std::string> files, prices;
  bool as_json = false;
  root.add("--gpus", gpus, "GPUs");
  root.add("--layers", layers, "layers", {.least = 0});
  root.add("--rate", rate, "a rate");
  root.add("--out", out, "a file");
  root.add("--trace", files, "files");
  root.add_repeated(
      "--price", [&](const std::string& word) { prices.push_back(word); }, "prices");
  root.add("--json", as_json, "one document");
  const CommandLine::Parsed parsed =
      parse(line, {"--layers", "0", "--rate", "2e-3", "--trace", "a", "b", "--price", "p=1",
                   "--price", "q=2", "--json"});
  EXPECT_FALSE(parsed.answer);
  EXPECT_EQ(parsed.verb, "");
  EXPECT_EQ(gpus, 8);
  EXPECT_EQ(layers, 0);
  EXPECT_EQ(rate, 2e-3);
  EXPECT_EQ(out, "kept");
  EXPECT_THAT(files, ElementsAre("a", "b"));
  EXPECT_THAT(prices, ElementsAre("p=1", "q=2"));
  EXPECT_TRUE(as_json);
}

TEST(CommandLine, ErrorsNameTheFlag) {
  CommandLine line("x", "");
  std::int64_t gpus = 8;
  line.root().add("--gpus", gpus, "GPUs");
  const auto refused = [&](std::vector<const char*> words, ExitCode code, const char* sentence) {
    try {
      parse(line, std::move(words));
      ADD_FAILURE() << "accepted: " << sentence;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_STREQ(error.what(), sentence);
    }
  };
  refused({"--gpus", "-1"}, ExitCode::kBadInput,
          "--gpus is -1, but it must be a whole number of at least 1.");
  refused({"--gpus"}, ExitCode::kUsage, "x: --gpus takes one value, but none was given.");
  refused({"--gpsu", "1"}, ExitCode::kUsage, "x has no flag '--gpsu', did you mean '--gpus'?");
  refused({"word"}, ExitCode::kUsage, "x takes no further argument, but 'word' was given.");
}

TEST(CommandLine, WritesOverNothingThatItReads) {
  const std::filesystem::path& folder = shardwright::testing::temp_folder();
  const std::string file = folder / "a.json", same = folder / "." / "a.json", other = same + "2";
  std::ofstream(file) << "{}";
  CommandLine line("x", "");
  std::string in, out;
  line.root().add("--in", in, "a file");
  line.root().add("--out", out, "a file").writes();
  EXPECT_EQ(shardwright::testing::refusal_of([&] {
              parse(line, {"--out", same.c_str(), "--in", file.c_str()});
            }),
            "--out is " + same + ", which --in names, too, expected a file of its own");
  EXPECT_EQ(parse(line, {"--out", other.c_str(), "--in", file.c_str()}).verb, "");
}

TEST(CommandLine, TellsTheVerb) {
  CommandLine line("x", "");
  bool as_json = false;
  line.add_verb("one", "first");
  line.add_verb("two", "second").add("--json", as_json, "one document");
  EXPECT_EQ(parse(line, {"two", "--json"}).verb, "two");
  EXPECT_TRUE(as_json);
}

// A long description continues under itself, and a long name has a line of its own.
TEST(CommandLine, HelpWrapsDescriptions) {
  CommandLine line("x", "");
  bool nothing = false;
  line.root().add("-n,--nothing", nothing, std::string(40, 'a') + " " + std::string(40, 'b'));
  line.root().add("--a-name-that-is-longer-than-its-column", nothing, "short");
  const std::string help = parse(line, {"--help"}).answer.value_or("");
  const std::string indent(34, ' ');
  EXPECT_THAT(help, HasSubstr("  -n, --nothing" + std::string(19, ' ') + std::string(40, 'a') +
                              "\n" + indent + std::string(40, 'b') + "\n"));
  EXPECT_THAT(help, HasSubstr("  --a-name-that-is-longer-than-its-column\n" + indent + "short\n"));
}

}  // namespace
}  // namespace shardwright::cli
