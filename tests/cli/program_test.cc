// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>

#include "cli/build_info.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

ProgramResult shardwright_run(Words arguments, const Words& environment = {},
                              const std::string& stdout_path = {}) {
  arguments.insert(arguments.begin(), SHARDWRIGHT_BINARY);
  return run_program(arguments, environment, stdout_path);
}

// Wrong usage: exit code 2, nothing on stdout, one sentence on stderr.
void expect_usage_error(const Words& arguments, const std::string& sentence) {
  const ProgramResult result = shardwright_run(arguments);
  EXPECT_EQ(result.exit_code, 2) << sentence;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr(sentence));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(Program, WrongUsageIsOneSentenceAndCode2) {
  expect_usage_error({}, "error: no verb was given; the verbs are ");
  expect_usage_error({"docter"}, "error: there is no verb 'docter', did you mean 'doctor'?");
  expect_usage_error({"siez", "--model", "x"},
                     "error: there is no verb 'siez', did you mean 'size'?");
  expect_usage_error({"predict", "--batch", "3"}, "did you mean '--micro-batch'?");
  expect_usage_error({"predict", "--qlora"}, "did you mean '--task qlora'?");
  expect_usage_error({"tune", "--batch-size", "3"}, "did you mean '--micro-batch'?");
  expect_usage_error({"doctor", "--qlora"}, "shardwright doctor has no flag '--qlora'; ");
  expect_usage_error({"zzzzzzzz"}, "error: there is no verb 'zzzzzzzz'; the verbs are ");
  expect_usage_error({"--versoin"},
                     "error: shardwright has no flag '--versoin', did you mean '--version'?");
  expect_usage_error({"doctor", "--jsno"},
                     "error: shardwright doctor has no flag '--jsno', did you mean '--json'?");
  expect_usage_error(
      {"doctor", "--frobnicate=3"},
      "error: shardwright doctor has no flag '--frobnicate'; shardwright doctor --help");
  expect_usage_error({"doctor", "twice"},
                     "error: shardwright doctor takes no further argument, but 'twice' was given.");
  expect_usage_error({"predict", "llama-3-8b", "dgx-h100"},
                     "a model is named by --model, a cluster by --cluster");
  expect_usage_error({"doctor", "--color"}, "--color takes one value, but none was given.");
  expect_usage_error({"--color", "blue", "doctor"},
                     "error: --color is 'blue', but it must be auto, always or never.");
}

// Files, models and keys are named by strangers, who may write escapes into names.
TEST(Program, NoControlCharacterOfAnErrorReachesTheTerminal) {
  const ProgramResult result = shardwright_run(
      {"predict", "--model", "evil\x1b]0;owned\x07\x9b\xff", "--cluster", "dgx-h100"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("evil ]0;owned "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const char letter : result.err) {
    const auto byte = static_cast<unsigned char>(letter);
    EXPECT_TRUE(letter == '\n' || (byte >= 0x20 && byte != 0x7f && byte != 0xff)) << int{byte};
  }
}

TEST(Program, PathsThatNoFileSystemTakesAreBadInput) {
  const std::string path = "/" + std::string(5000, 'x');
  for (Words words : {Words{"predict", "--model", path, "--cluster", "dgx-h100"},
                      {"predict", "--model", "llama-3-8b", "--cluster", path + ".json"},
                      {"run", "--model", "llama-3-8b", "--data", path, "--device", "host"},
                      {"run", "--model", "qwen3-0.6b", "--data", "synthetic", "--weights", path,
                       "--device", "host"},
                      {"run", "--model", "qwen3-0.6b", "--data", "synthetic", "--resume", path,
                       "--device", "host"}}) {
    if (words[0] == "run") {
      words.insert(words.end(), {"--out", temp_path("run")});
    }
    const ProgramResult result = shardwright_run(words);
    EXPECT_EQ(result.exit_code, 3) << words[0] << result.err.substr(0, 200);
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("unexpected failure")));
    EXPECT_THAT(result.err, ::testing::AnyOf(HasSubstr("too long"), HasSubstr("no such file")));
  }
}

TEST(Program, HelpOfAVerbIsItsHelp) {
  EXPECT_EQ(shardwright_run({"help"}).out, shardwright_run({"--help"}).out);
  const ProgramResult result = shardwright_run({"help", "size"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, shardwright_run({"size", "--help"}).out);
  expect_usage_error({"help", "siez"}, "did you mean 'size'?");
}

TEST(Program, HelpListsVerbsAndExitCodes) {
  const ProgramResult result = shardwright_run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("doctor"));
  EXPECT_THAT(result.out, HasSubstr("6  comparison outside tolerance"));
}

TEST(Program, HelpIsAWordAsWell) {
  EXPECT_EQ(shardwright_run({"help"}).out, shardwright_run({"--help"}).out);
  EXPECT_EQ(shardwright_run({"help", "predict"}).out, shardwright_run({"predict", "--help"}).out);
  EXPECT_EQ(shardwright_run({"help", "nothing", "more"}).exit_code, 2);
}

// The help of the program and of every verb.
Words help_texts() {
  Words texts{shardwright_run({"--help"}).out};
  for (const std::unique_ptr<Verb>& verb : not_empty(make_verbs())) {
    const ProgramResult result = shardwright_run({verb->name(), "--help"});
    EXPECT_EQ(result.exit_code, 0) << verb->name();
    texts.push_back(result.out);
  }
  return texts;
}

TEST(Program, HelpFitsInto80Columns) {
  for (const std::string& text : not_empty(help_texts())) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80) << line;
  }
}

TEST(Program, VersionNamesWhatItWasBuiltWith) {
  const ProgramResult result = shardwright_run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, ::testing::StartsWith("shardwright 0."));
  expect_says(result.out,
              {"fmt ", "nlohmann-json ", "CLI11 ", "Boost ", "Eigen ", "CUDA toolkit ", "NCCL "});
}

TEST(Program, TheVersionOfAStandardIsNoVersionOfALibrary) {
  for (const LibraryVersion& library : build_info().libraries) {
    EXPECT_TRUE(library.name != "MPI" || library.version.empty()) << library.version;
  }
}

TEST(Program, ColorsObeyTheFlagThenNoColor) {
  const auto colored = [](const ProgramResult& r) {
    return r.err.find('\x1b') != std::string::npos;
  };
  EXPECT_TRUE(colored(shardwright_run({"--color", "always", "doctor", "x"}, {"NO_COLOR=1"})));
  EXPECT_FALSE(colored(shardwright_run({"--color", "never", "doctor", "x"})));
  EXPECT_FALSE(colored(shardwright_run({"doctor", "x"}))) << "a pipe is no terminal";
}

TEST(Program, AFullDiskIsNotSuccess) {
  expect_end(shardwright_run({"doctor"}, {}, "/dev/full"), 1, {"standard output"});
}

class FakeVerb : public Verb {
 public:
  explicit FakeVerb(std::function<ExitCode()> body)
      : Verb("fake", "does what the test wants"), body_(std::move(body)) {}
  void declare_flags(Command& /*command*/) override {}
  ExitCode run(const Context& /*context*/) override { return body_(); }

 private:
  std::function<ExitCode()> body_;
};

// Runs a program whose only verb has that body; returns its exit code and, in `said`, its stderr.
int run_fake(std::function<ExitCode()> body, std::string* said = nullptr) {
  std::vector<std::unique_ptr<Verb>> verbs;
  verbs.push_back(std::make_unique<FakeVerb>(std::move(body)));
  const char* argv[] = {"shardwright", "fake"};
  ::testing::internal::CaptureStderr();
  const int code = cli::run_program(2, argv, verbs);
  const std::string text = ::testing::internal::GetCapturedStderr();
  if (said != nullptr) *said = text;
  return code;
}

TEST(Program, EveryOutcomeHasItsExitCode) {
  EXPECT_EQ(run_fake([] { return ExitCode::kDone; }), 0);
  EXPECT_EQ(run_fake([] { return ExitCode::kOutsideTolerance; }), 6);
  EXPECT_EQ(run_fake([]() -> ExitCode { throw Error("x"); }), 3);
  EXPECT_EQ(run_fake([]() -> ExitCode { throw Error("x", ExitCode::kInfeasible); }), 4);
  EXPECT_EQ(run_fake([]() -> ExitCode { throw Error("x", ExitCode::kMissingDevice); }), 5);
  EXPECT_EQ(run_fake([]() -> ExitCode { throw std::bad_alloc(); }), 1);
  std::string said;
  EXPECT_EQ(run_fake([]() -> ExitCode { throw std::runtime_error("the cat"); }, &said), 1);
  EXPECT_EQ(said, "error: unexpected failure: the cat.\n");
  EXPECT_EQ(run_fake([]() -> ExitCode { throw Error("--gpus is 0."); }, &said), 3);
  EXPECT_EQ(said, "error: --gpus is 0.\n");
}

TEST(Program, AThreadThatCannotBeStartedIsASentence) {
  std::string said;
  const auto no_thread = []() -> ExitCode {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
  EXPECT_EQ(run_fake(no_thread, &said), 1);
  EXPECT_THAT(said, HasSubstr("no thread could be started"));
}

ExitCode without_memory() {
  throw std::bad_alloc();
}

TEST(ProgramDeathTest, WithoutMemoryInADestructorThereIsASentence) {
  const auto run = [] {
    std::vector<std::unique_ptr<Verb>> verbs;
    verbs.push_back(std::make_unique<FakeVerb>([]() noexcept { return without_memory(); }));
    const char* argv[] = {"shardwright", "fake"};
    cli::run_program(2, argv, verbs);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(1), "this machine ran out of memory");
}

TEST(Program, ASentenceOfAStrangerIsCut) {
  std::string said;
  const std::string name(5'000, 'x');
  EXPECT_EQ(run_fake([&]() -> ExitCode { throw Error("no  " + name + "\nis a tensor"); }, &said),
            3);
  EXPECT_THAT(said, ::testing::EndsWith("no  " + name.substr(0, 100) + "...\nis a tensor\n"));
  std::string names;
  for (int i = 0; i < 100'000; ++i) names += "x ";
  EXPECT_EQ(run_fake([&]() -> ExitCode { throw Error(names); }, &said), 3);
  EXPECT_LT(said.size(), 20'000U);
  EXPECT_THAT(said, ::testing::EndsWith("(cut here)\n"));
}

}  // namespace
}  // namespace shardwright::cli
