// SPDX-License-Identifier: Apache-2.0
// Guards exec/comm/bootstrap.h: what others put where ranks are going to look is neither written
// through nor believed nor waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "exec/comm/bootstrap.h"
#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"
#include "tests/support/temp_folder.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using shardwright::testing::TempFolder;
using ::testing::HasSubstr;

std::string why_not(const fs::path& path) {
  std::string why;
  EXPECT_EQ(read_private_file(path, 4096, why), std::nullopt);
  return why;
}

TEST(PrivateFile, IsReadBackAndClosedToOthers) {
  const TempFolder folder;
  const fs::path path = folder.path() / "meet";
  write_private_file(path, "words");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  std::string why;
  EXPECT_EQ(read_private_file(path, 4096, why), "words");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(PrivateFile, ReplacesALinkInsteadOfWritingThroughIt) {
  const TempFolder folder;
  const fs::path victim = folder.path() / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, folder.path() / "meet");
  write_private_file(folder.path() / "meet", "words");
  EXPECT_EQ(read_file(victim, 100), "precious");
  EXPECT_FALSE(fs::is_symlink(folder.path() / "meet"));
}

TEST(PrivateFile, BelievesOnlyAFileOfItsOwnThatNobodyElseReads) {
  const TempFolder folder;
  const fs::path path = folder.path() / "meet";
  EXPECT_THAT(why_not(path), HasSubstr("No such file"));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(why_not(path), "it is no regular file");  // and nobody waits for a writer
  fs::remove(path);
  write_private_file(folder.path() / "other", "words");
  fs::create_symlink(folder.path() / "other", path);
  EXPECT_EQ(why_not(path), "it is a link");
  fs::remove(path);
  write_private_file(path, "words");
  fs::permissions(path, fs::perms(0640));
  EXPECT_EQ(why_not(path), "others may read it, its mode is 0640");
  fs::permissions(path, fs::perms(0600));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 0), 0);
    EXPECT_EQ(why_not(path), "it belongs to another user");
  }
}

TEST(PrivateFile, LiesInAFolderOfThisUserAlone) {
  const TempFolder folder;
  const auto at = [&](const fs::path& runtime) {
    return private_folder([&](const std::string& name) {
      return name == "XDG_RUNTIME_DIR" ? std::optional(runtime.string()) : std::nullopt;
    });
  };
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  const fs::path runtime = folder.path() / "runtime";
  fs::create_directory(runtime);
  fs::permissions(runtime, fs::perms(0700));
  EXPECT_EQ(at(runtime), runtime);
  fs::permissions(runtime, fs::perms(0755));  // others may enter: the temporary folder it is
  const fs::path own = at(runtime);
  EXPECT_EQ(own.parent_path(), folder.path());
  EXPECT_EQ(fs::status(own).permissions(), fs::perms(0700));
  fs::permissions(own, fs::perms(0777));
  EXPECT_THROW(at(runtime), Error);
  fs::remove(own);
  fs::create_symlink(folder.path(), own);
  EXPECT_THROW(at(runtime), Error);
  if (kept.empty()) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace shardwright::exec
