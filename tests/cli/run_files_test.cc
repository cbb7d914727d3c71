// SPDX-License-Identifier: Apache-2.0
// Guards which files `shardwright run` reads and writes on demand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using ::testing::HasSubstr;

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
  const ProgramResult result = run(small("out", {"--tensorboard", "on"}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr(at("out/tensorboard")));
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
}

}  // namespace
}  // namespace shardwright::cli
