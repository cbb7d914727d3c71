// SPDX-License-Identifier: Apache-2.0
// Guards the completion scripts: each shell that is there accepts its own, and bash offers what a
// person would type.

#include "cli/machine/machine.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

std::string script_of(const std::string& shell) {
  const ProgramResult result = run_program({SHARDWRIGHT_BINARY, "completion", shell});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(Completion, EveryShellAcceptsItsScript) {
  const testing::TempFolder folder;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto file = folder.path() / shell;
    std::ofstream(file) << script_of(shell);
    const std::string program = program_path(shell).string();
    if (program.empty()) continue;
    const ProgramResult checked = run_program({program, "-n", file.string()});
    EXPECT_EQ(checked.exit_code, 0) << checked.err;
  }
  EXPECT_EQ(run_program({SHARDWRIGHT_BINARY, "completion", "tcsh"}).exit_code, 3);
}

TEST(Completion, BashOffersVerbsFlagsAndNames) {
  const testing::TempFolder folder;
  const auto file = folder.path() / "completion.bash";
  std::ofstream(file) << script_of("bash");
  const std::string bash = program_path("bash").string();
  if (bash.empty()) GTEST_SKIP() << "no bash";
  const auto offers = [&](const std::string& words, int at) {
    return run_program({bash, "-c",
                        "source " + file.string() + "; COMP_WORDS=(" + words + "); COMP_CWORD=" +
                            std::to_string(at) + "; _shardwright; echo \"${COMPREPLY[*]}\""})
        .out;
  };
  EXPECT_EQ(offers("shardwright pred", 1), "predict\n");
  EXPECT_THAT(offers("shardwright predict --ckpt", 2), HasSubstr("--ckpt-layers"));
  EXPECT_THAT(offers("shardwright size --", 2), HasSubstr("--deadline"));
  EXPECT_THAT(offers("shardwright predict --", 2), Not(HasSubstr("--deadline")));
  EXPECT_THAT(offers("shardwright predict --model llama-3-", 3), HasSubstr("llama-3-70b"));
  EXPECT_THAT(offers("shardwright predict --cluster dgx-h", 3), HasSubstr("dgx-h100"));
  EXPECT_EQ(offers("shardwright predict --param-dtype b", 3), "bf16\n");
  EXPECT_EQ(offers("shardwright inspect mode", 2), "model models\n");
}

}  // namespace
}  // namespace shardwright::cli
