// SPDX-License-Identifier: Apache-2.0
// A file that stays is read once; one that changes is read again; a reader that fails leaves
// nothing behind.
#include "profiles/kept_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

namespace fs = std::filesystem;

int reads = 0;

std::string read_word(const std::string& file) {
  ++reads;
  std::ifstream stream(file);
  std::string word;
  if (!(stream >> word)) throw std::runtime_error("no word");
  return word;
}

class KeptFile : public ::testing::Test {
 protected:
  void SetUp() override { reads = 0; }
  void write(const std::string& text, int seconds_ago) const {
    std::ofstream(file) << text;
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(seconds_ago));
  }

  const fs::path file = shardwright::testing::temp_folder() / "word";
  KeptFiles<std::string> kept{&read_word};
};

TEST_F(KeptFile, IsReadOnceWhileItStays) {
  write("one", 10);
  EXPECT_EQ(*kept.get(file), "one");
  EXPECT_EQ(kept.get(file), kept.get(file));
  EXPECT_EQ(reads, 1);
}

TEST_F(KeptFile, IsReadAgainWhenItsTimeOrSizeChanges) {
  write("one", 10);
  const auto first = kept.get(file);
  write("two", 5);
  EXPECT_EQ(*kept.get(file), "two");
  write("three", 5);
  EXPECT_EQ(*kept.get(file), "three");
  EXPECT_EQ(*first, "one");
  EXPECT_EQ(reads, 3);
}

TEST_F(KeptFile, FailsAsItsReaderDoes) {
  write("", 10);
  EXPECT_THROW(kept.get(file), std::runtime_error);
  EXPECT_THROW(kept.get(file), std::runtime_error);
  write("now", 10);
  EXPECT_EQ(*kept.get(file), "now");
  fs::remove(file);
  EXPECT_THROW(kept.get(file), std::runtime_error);
}

}  // namespace
}  // namespace shardwright::profiles
