// SPDX-License-Identifier: Apache-2.0
// Guards the event files of TensorBoard: bytes that its own writer makes, and a file that grows by
// a record a step.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "exec/train/metrics.h"
#include "tests/support/files.h"

namespace shardwright::exec {
namespace {

using namespace std::string_view_literals;

// RFC 3720, B.4: CRC-32C of 32 zero bytes is 8a9136aa; TFRecord rotates and adds a constant.
TEST(EventFile, ChecksumsAreThoseOfTfRecord) {
  const std::uint32_t plain = 0x8a9136aau;
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), (plain >> 15 | plain << 17) + 0xa282ead8u);
}

// The fields of event.proto by hand: a double, a varint, and a summary of one value.
TEST(EventFile, AScalarIsAnEventInProtobufsWireFormat) {
  const Scalar scalar{"a/b", 1.5};
  const std::string record = scalars_record(2.0, 300, std::span(&scalar, 1));
  const std::string_view event =
      "\x09\x00\x00\x00\x00\x00\x00\x00\x40"  // wall_time: 2
      "\x10\xac\x02"                          // step: 300
      "\x2a\x0c"                              // summary, 12 bytes
      "\x0a\x0a"                              // value, 10 bytes
      "\x0a\x03"
      "a/b"                      // tag
      "\x15\x00\x00\xc0\x3f"sv;  // simple_value: 1.5
  ASSERT_EQ(record.size(), 8 + 4 + event.size() + 4);
  EXPECT_EQ(record[0], static_cast<char>(event.size()));
  EXPECT_EQ(record.substr(12, event.size()), event);
}

TEST(EventFile, GrowsByARecordAStep) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("shardwright-events-" + std::to_string(::getpid()));
  {
    EventFile events(folder);
    StepMetrics metrics;
    metrics.step = 1;
    metrics.loss = 2.5;
    EXPECT_TRUE(events.append(metrics));
    metrics.step = 2;
    metrics.eval_loss = 2.25;
    EXPECT_TRUE(events.append(metrics));
  }
  const fs::path path = fs::directory_iterator(folder)->path();
  EXPECT_NE(path.filename().string().find("tfevents"), std::string::npos);
  const std::string bytes = shardwright::testing::get(path);
  EXPECT_NE(bytes.find("brain.Event:2"), std::string::npos);
  std::size_t records = 0;
  for (std::size_t at = 0; at < bytes.size(); ++records) {
    const std::string_view head = std::string_view(bytes).substr(at, 8);
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) {
      length = length << 8 | static_cast<unsigned char>(head[static_cast<std::size_t>(i)]);
    }
    at += 12 + length + 4;
    ASSERT_LE(at, bytes.size());
  }
  EXPECT_EQ(records, 3u);
  EXPECT_NE(bytes.find("eval/loss"), std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace shardwright::exec
