// SPDX-License-Identifier: Apache-2.0
// Guards profiles/import/byte_stream.cc as the planner has it, which is built without zlib.
#include "profiles/import/byte_stream.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "sim/core/base/error.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

std::string all_of(ByteStream& stream) {
  std::string text(64, '\0');
  std::size_t size = 0;
  while (const std::size_t count = stream.read(text.data() + size, 3)) size += count;
  EXPECT_FALSE(stream.damaged());
  return text.substr(0, size);
}

class ByteStreamWithoutZlib : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::string& bytes) const {
    const auto path = folder_.path() / "trace.json";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  shardwright::testing::TempFolder folder_;
};

TEST_F(ByteStreamWithoutZlib, SaysThatItReadsNoGzip) {
  const auto path = put("\x1f\x8b\x08 and so on");
  EXPECT_THAT([&] { ByteStream stream(path); },
              ::testing::ThrowsMessage<Error>(
                  path.string() + " is packed with gzip, which this build cannot read; unpack it "
                                  "with gunzip first"));
}

TEST_F(ByteStreamWithoutZlib, ReadsWhatIsPlainFromTheFirstByteOn) {
  for (const std::string text : {"", "{", "[]", "{\"traceEvents\": []}"}) {
    ByteStream stream(put(text));
    EXPECT_EQ(all_of(stream), text);
  }
}

TEST_F(ByteStreamWithoutZlib, ReadsAPipeFromTheFirstByteOn) {
  const auto path = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int writer = ::open(path.c_str(), O_RDWR);
  ASSERT_EQ(::write(writer, "[1, 2]", 6), 6);
  ByteStream stream(path);
  ::close(writer);
  EXPECT_EQ(all_of(stream), "[1, 2]");
}

}  // namespace
}  // namespace shardwright::profiles
