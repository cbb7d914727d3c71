// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/atomic_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iterator>
#include <thread>

#include "sim/core/base/read_file.h"
#include "tests/core/common.h"

namespace shardwright {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest()
      : folder_(shardwright::testing::temp_folder() /
                ("shardwright_atomic_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  static std::string read(const fs::path& path) { return read_file(path, 1 << 24); }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

template <typename Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error("");
}

TEST_F(AtomicFileTest, WritesAndReplaces) {
  const fs::path path = folder_ / "plan.json";
  write_file_atomically(path, "one");
  EXPECT_EQ(read(path), "one");
  write_file_atomically(path, std::string("tw\0o", 4));
  EXPECT_EQ(read(path), std::string("tw\0o", 4));
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, OldContentStaysUntilCommit) {
  const fs::path path = folder_ / "plan.json";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("half");
    EXPECT_EQ(read(path), "old");
  }
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(files(), 1) << "the temporary file was left behind";

  AtomicFile file(path);
  file.write("ne");
  file.write("w");
  file.commit();
  EXPECT_EQ(read(path), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, KeepsPermissionsAndLinks) {
  const fs::path path = folder_ / "real";
  const fs::path link = folder_ / "link";
  write_file_atomically(path, "a");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real", link);
  write_file_atomically(link, "b");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read(path), "b");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(AtomicFileTest, DevicesAreWrittenNotReplaced) {
  write_file_atomically("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, ErrorsNameTheTarget) {
  const fs::path missing = folder_ / "absent" / "plan.json";
  const Error no_folder = error_of([&] { write_file_atomically(missing, ""); });
  EXPECT_EQ(no_folder.code(), ExitCode::kBadInput);
  EXPECT_EQ(no_folder.what(),
            missing.string() + ": cannot create this file: No such file or directory");
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_, ""); }).what(),
              HasSubstr(folder_.string() + ": cannot write this file: Is a directory"));
  EXPECT_THAT(error_of([] { write_file_atomically("", ""); }).what(), HasSubstr("cannot write"));
}

TEST_F(AtomicFileTest, FailedWriteLeavesTheOldFile) {
  const fs::path path = folder_ / "plan.json";
  write_file_atomically(path, "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = error_of([&] { write_file_atomically(path, std::string(10'000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ExitCode::kFailed);
  EXPECT_EQ(error.what(), path.string() + ": cannot write this file: File too large");
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, OneCauseHasOneCode) {
  for (const int transient : {ENOSPC, EIO, EROFS, EDQUOT, EMFILE}) {
    EXPECT_EQ(exit_code_of(transient), ExitCode::kFailed) << transient;
  }
  for (const int wrong : {ENOENT, EACCES, ENOTDIR, EISDIR}) {
    EXPECT_EQ(exit_code_of(wrong), ExitCode::kBadInput) << wrong;
  }
}

TEST_F(AtomicFileTest, FollowsNoLinkOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes links of others";
  const fs::path victim = folder_ / "victim";
  write_file_atomically(victim, "precious");
  const fs::path link = folder_ / "metrics.jsonl";
  fs::create_symlink(victim, link);
  ASSERT_EQ(::lchown(link.c_str(), 12345, 12345), 0);
  EXPECT_THAT(error_of([&] { write_file_atomically(link, "gone"); }).what(),
              HasSubstr("is a link that another user made"));
  EXPECT_EQ(read(victim), "precious");
}

TEST_F(AtomicFileTest, InAFolderOfStrangersOnlyARegularFileIsReplaced) {
  const fs::path victim = folder_ / "victim", link = folder_ / "metrics.jsonl",
                 pipe = folder_ / "trace.json";
  write_file_atomically(victim, "precious");
  fs::create_symlink(victim, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto refusal = [](const fs::path& path) {
    return error_of([&] { write_file_atomically(path, "gone", OutputPlace::kInFolder); });
  };
  EXPECT_THAT(refusal(link).what(), HasSubstr("metrics.jsonl: is a link"));
  EXPECT_THAT(refusal(pipe).what(), HasSubstr("trace.json: is a pipe"));
  EXPECT_EQ(refusal(link).code(), ExitCode::kBadInput);
  EXPECT_EQ(read(victim), "precious");
  write_file_atomically(victim, "new", OutputPlace::kInFolder);
  EXPECT_EQ(read(victim), "new");
}

TEST_F(AtomicFileTest, AFolderOfItsOwnIsNoLink) {
  fs::create_directories(folder_ / "real");
  fs::create_directory_symlink(folder_ / "real", folder_ / "link");
  require_folder_or_none(folder_ / "real");
  require_folder_or_none(folder_ / "absent");
  for (const fs::path& link : {folder_ / "link", folder_ / "link" / ""}) {
    EXPECT_THAT(error_of([&] { require_folder_or_none(link); }).what(), HasSubstr("is a link"));
  }
}

TEST_F(AtomicFileTest, APipeThatNobodyReadsIsRefused) {
  const fs::path pipe = folder_ / "plan.json";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { write_file_atomically(pipe, "words"); }).what(),
              HasSubstr("is a pipe that nobody reads"));
  std::string got;
  std::thread reader([&] { std::getline(std::ifstream(pipe), got); });
  write_file_atomically(pipe, "words");
  reader.join();
  EXPECT_EQ(got, "words");
}

TEST_F(AtomicFileTest, AFolderIsMadeWithItsParentsOrRefused) {
  make_durable_folder(folder_ / "a" / "b" / "");
  make_durable_folder(folder_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
  write_file_atomically(folder_ / "file", "");
  const Error error = error_of([&] { make_durable_folder(folder_ / "file" / "c"); });
  EXPECT_THAT(error.what(), HasSubstr("file: cannot make this folder: Not a directory"));
  EXPECT_EQ(error.code(), ExitCode::kBadInput);
}

TEST_F(AtomicFileTest, APipeThatNobodyWritesToIsRefused) {
  const fs::path pipe = folder_ / "config.json";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { read(pipe); }).what(), HasSubstr("is a pipe that nobody writes to"));
  std::thread writer([&] { std::ofstream(pipe) << "words"; });
  EXPECT_EQ(read(pipe), "words");
  writer.join();
}

TEST_F(AtomicFileTest, ConcurrentWritersDoNotMix) {
  const fs::path path = folder_ / "shared";
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c) {
    writers.emplace_back([&, c] {
      for (int round = 0; round < 10; ++round) {
        write_file_atomically(path, std::string(10'000, c));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = read(path);
  EXPECT_EQ(content, std::string(10'000, content[0]));
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace shardwright
