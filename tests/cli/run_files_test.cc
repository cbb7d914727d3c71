// SPDX-License-Identifier: Apache-2.0
// Guards which files `shardwright run` reads and writes on demand.

#include "cli/machine/machine.h"
#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using namespace testing;

using RunFiles = RunFixture;

// As a user asks for both; tests of exec look into the files.
TEST_F(RunFiles, BlendsFilesAndWritesEventFilesOnDemand) {
  put("other.txt", std::string(2000, 'z'));
  ASSERT_EQ(run(small("plain")).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "plain" / "tensorboard"));
  const ProgramResult result =
      run(small("out", {"--data", at("text.txt") + "=0.75," + at("other.txt") + "=0.25",
                        "--tensorboard", "on"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& words : {std::string("% of "), at("text.txt"), at("other.txt")})
    EXPECT_THAT(result.err, HasSubstr(words));
  std::vector<fs::path> events;
  for (const auto& file : fs::directory_iterator(folder_ / "out" / "tensorboard"))
    events.push_back(file.path());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].filename().string(), ::testing::StartsWith("events.out.tfevents."));
  const std::string text = get(events[0]);
  std::size_t losses = 0;
  for (std::size_t i = text.find("train/loss"); i != std::string::npos;
       i = text.find("train/loss", i + 1))
    ++losses;
  EXPECT_EQ(losses, 8u) << "one a step";
  EXPECT_NE(model_of("out"), model_of("plain"));
}

// As everything else that a run writes: an archive makes links in the name of whoever unpacks it.
TEST_F(RunFiles, EventFilesFollowNoLink) {
  fs::create_directories(folder_ / "out");
  fs::create_directories(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "out" / "tensorboard");
  expect_end(run(small("out", {"--tensorboard", "on"})), 3, {at("out/tensorboard")});
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
}

/// A model of more tokens than there are bytes, and a tokenizer beside it.
class RunTexts : public RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    std::string model = get(folder_ / "model.json");
    model.replace(model.find("\"vocab_size\": 256"), 17, "\"vocab_size\": 600");
    put("model.json", model);
    put("tokenizer.json", "{}");
    put("it's.txt", get(folder_ / "text.txt"));
  }
  Words of_text(const Words& more = {}, const char* data = "it's.txt") const {
    return joined(small("out", {"--data", at(data), "--overwrite", "yes"}), more);
  }
  /// A Python whose converter applies bytes and says they are of the tokenizer that it is told.
  fs::path converting_python(const fs::path& python) const {
    fs::path script =
        put("python", fmt::format(R"(#!/bin/sh
echo began >>{}/began
shift 1
exec {} -c '
import pathlib, sys
sys.path.append("{}/../cli/python/shardwright")
import tokens
tokens.Bytes.files = tokens.files_of(pathlib.Path(sys.argv[3]))
sys.exit(tokens.main([sys.argv[1], "--tokenizer", "bytes", sys.argv[8]]))' "$@"
)",
                                  folder_.string(), python.string(), SHARDWRIGHT_SCRIPTS));
    fs::permissions(script, fs::perms::owner_all);
    return script;
  }
};

TEST_F(RunTexts, AreRefusedWithTheCommandThatMakesTokens) {
  const ProgramResult refused = run(of_text());
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("are not the model's 600 tokens"));
  const std::string command =
      fmt::format("it'\\''s.tok' --tokenizer {} --vocab 600 --seq-len 32 '{}/it'\\''s.txt'",
                  folder_.string(), folder_.string());
  EXPECT_THAT(refused.err, HasSubstr("cli/python/shardwright/tokens.py '" + command));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  fs::remove(folder_ / "tokenizer.json");
  EXPECT_THAT(run(of_text()).err, HasSubstr("no tokenizer is beside it"));
  expect_end(run(of_text({"--tokenizer", at("none")})), 3, {"--tokenizer is"});
  const ProgramResult bytes = run(of_text({"--tokenizer", "bytes"}));
  EXPECT_EQ(bytes.exit_code, 0) << bytes.err;
  EXPECT_THAT(get(folder_ / "out" / "run.ini"), HasSubstr("tokenizer = bytes  # flag"));
}

TEST_F(RunTexts, TokensAreOfTheModelsTokenizer) {
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  put("added_tokens.json", "[]");
  const std::string script = converting_python(python).string();
  const ProgramResult made = run(
      {script, "tokens.py", at("a.tok"), "--tokenizer", at("."), "", "", "", "", at("it's.txt")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto trained = [&](const Words& more) { return run(of_text(more, "a.tok")); };
  EXPECT_EQ(trained({}).exit_code, 0);
  fs::create_directories(folder_ / "first");
  for (const char* file : {"tokenizer.json", "added_tokens.json"})
    fs::copy(folder_ / file, folder_ / "first" / file);
  put("added_tokens.json", "{}");
  expect_end(trained({}), 3, {at("a.tok") + ": its tokens are of another tokenizer"});
  EXPECT_EQ(trained({"--tokenizer", "bytes"}).exit_code, 3);
  EXPECT_EQ(trained({"--tokenizer", at("first")}).exit_code, 0);
}

TEST_F(RunTexts, ConversationsAreSetByTheModelsTemplate) {
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  std::string pairs;
  for (int i = 0; i < 90; ++i)
    pairs += fmt::format(R"({{"prompt": "{}?", "completion": "{}."}})", i, i * i) + "\n";
  put("pairs.jsonl", pairs);
  const ProgramResult made = run({converting_python(python).string(), "tokens.py", at("a.tok"),
                                  "--tokenizer", at("."), "", "", "", "", at("pairs.jsonl")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto trained = [&] { return run(of_text({}, "a.tok")); };
  ASSERT_EQ(trained().exit_code, 0) << "neither has a template";
  put("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "x"}]})");
  EXPECT_EQ(trained().exit_code, 0) << "one of several";
  for (const auto& [file, text] : {std::pair{"tokenizer_config.json", R"({"chat_template": "x"})"},
                                   std::pair{"chat_template.jinja", "{{ messages }}"}}) {
    put(file, text);
    const ProgramResult refused = trained();
    EXPECT_EQ(refused.exit_code, 3) << file;
    EXPECT_THAT(refused.err, HasSubstr("are set by another chat template")) << file;
  }
}

TEST_F(RunTexts, BecomeTokensOnceWhereAPythonIsNamed) {
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  const fs::path script = converting_python(python);
  const Words environment{"SHARDWRIGHT_PYTHON=" + script.string(), "XDG_CACHE_HOME=" + at("cache")};
  const auto began = [&] { return get(folder_ / "began").size() / 6; };
  for (int i = 0; i < 2; ++i) {
    expect_end(run(of_text(), environment), 0, {"tokens of a vocabulary of 256"});
    EXPECT_EQ(began(), 1u) << "it is kept";
  }
  const std::string model = model_of("out");
  ASSERT_EQ(run(of_text({"--tokenizer", "bytes"})).exit_code, 0);
  EXPECT_EQ(model_of("out"), model);
  put("tokenizer.json", "{ }");
  ASSERT_EQ(run(of_text(), environment).exit_code, 0);
  EXPECT_EQ(began(), 2u) << "by another tokenizer";
  put("it's.txt", std::string(9000, 'x'));
  ASSERT_EQ(run(of_text(), environment).exit_code, 0);
  EXPECT_EQ(began(), 3u) << "of another text";
  put("it's.txt", std::string(9000, '\xff'));
  expect_end(run(of_text(), environment), 3, {"no UTF-8 at byte 0"});
}

TEST_F(RunFiles, TokensAndEpochsAreSteps) {
  // A step has 2 ranks of 2 sequences of 32 tokens; 5 % of the text are held out.
  const auto steps = [&](const Words& more) {
    const Words words =
        joined({SHARDWRIGHT_BINARY, "run", "--device", "host", "--model", at("model.json"),
                "--data", at("text.txt")},
               {"--ranks", "2", "--seq-len", "32", "--micro-batch", "2", "--threads", "1"},
               {"--out", at("out"), "--overwrite", "yes", "--save", "none"}, more);

    const ProgramResult result = run(words);
    if (result.exit_code != 0) return result.err;
    const std::string ini = get(folder_ / "out" / "run.ini");
    const std::size_t begin = ini.find("\nsteps = ") + 1;
    EXPECT_THAT(ini, HasSubstr("\ntokens =   #"));
    return ini.substr(begin, ini.find('\n', begin) - begin);
  };
  EXPECT_EQ(steps({"--tokens", "1k"}), "steps = 8  # --tokens 1k");
  EXPECT_EQ(steps({"--tokens", "129"}), "steps = 2  # --tokens 129");
  EXPECT_THAT(steps({"--tokens", "9000000B"}), HasSubstr("--tokens is 9000000B"));
  const auto size = fs::file_size(folder_ / "text.txt");
  const auto sequences =
      (size - static_cast<std::uintmax_t>(0.05 * static_cast<double>(size)) - 1) / 32;
  EXPECT_EQ(steps({"--epochs", "0.1"}),
            fmt::format("steps = {}  # --epochs 0.1", (sequences + 39) / 40));
  EXPECT_THAT(steps({"--epochs", "0.1", "--warmup", "9999"}), HasSubstr("--warmup is 9999"));
  EXPECT_THAT(steps({"--epochs", "1", "--steps", "5"}), HasSubstr("left out beside --steps"));
  EXPECT_THAT(steps({"--epochs", "1", "--tokens", "5"}), HasSubstr("left out beside --tokens"));
}

}  // namespace
}  // namespace shardwright::cli
