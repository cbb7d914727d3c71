// SPDX-License-Identifier: Apache-2.0
#include "profiles/data_dir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "sim/core/base/error.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

class DataDir : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("SHARDWRIGHT_DATA"); }
  void TearDown() override { unsetenv("SHARDWRIGHT_DATA"); }
};

TEST_F(DataDir, IsTheSourceTreeInABuildTree) {
  EXPECT_TRUE(std::filesystem::is_directory(data_dir())) << data_dir();
  EXPECT_EQ(data_dir().filename(), "data");
}

TEST_F(DataDir, TheEnvironmentComesFirst) {
  const std::string folder = shardwright::testing::temp_folder().string();
  setenv("SHARDWRIGHT_DATA", folder.c_str(), 1);
  EXPECT_EQ(data_dir(), folder);
}

TEST_F(DataDir, AnEmptyVariableCountsAsUnset) {
  setenv("SHARDWRIGHT_DATA", "", 1);
  EXPECT_EQ(data_dir().filename(), "data");
}

TEST_F(DataDir, AMissingFolderIsNamed) {
  setenv("SHARDWRIGHT_DATA", "/no/such/folder", 1);
  try {
    data_dir();
    FAIL() << "accepted a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string{error.what()}.find("/no/such/folder"), std::string::npos);
  }
}

// With figures of whoever makes a folder beside it, a copied program would answer wrongly.
TEST_F(DataDir, FiguresOfSomebodyElseAreNotTakenUnasked) {
  namespace fs = std::filesystem;
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes folders of others";
  const fs::path mine = shardwright::testing::temp_folder() / "mine", theirs = mine / "theirs";
  fs::create_directories(theirs);
  ASSERT_EQ(::chown(theirs.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(is_trusted_folder(mine));
  EXPECT_FALSE(is_trusted_folder(theirs));
  EXPECT_FALSE(is_trusted_folder(mine / "absent"));
}

}  // namespace
}  // namespace shardwright::profiles
