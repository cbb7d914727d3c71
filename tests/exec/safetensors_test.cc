// SPDX-License-Identifier: Apache-2.0
#include "exec/train/safetensors.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

#include "kernels/bf16.h"
#include "kernels/random.h"
#include "sim/core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"

namespace shardwright::exec {
namespace {

using shardwright::testing::get;
using shardwright::testing::put;
using shardwright::testing::refusal_of;

namespace fs = std::filesystem;

/// A folder of its own for each test, removed afterwards.
class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("shardwright-") + test->name() + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& name) const { return folder_ / name; }

  fs::path folder_;
};

std::string file_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes.append(header).append(data);
}

std::string parse_message(std::string_view json, std::int64_t data_bytes) {
  return refusal_of([&] { parse_safetensors_header(json, data_bytes, "x"); });
}

template <class T>
std::span<const std::byte> bytes_of_values(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  std::vector<float> a(2 * 3 * 5);
  std::iota(a.begin(), a.end(), -7.5f);
  const std::vector<std::int64_t> b = {1, -2};
  const std::vector<TensorSpec> specs = {{"model.layers.0.weight", TensorType::kF32, {2, 3, 5}},
                                         {"empty", TensorType::kBf16, {4, 0}},
                                         {"counts \"quoted\" \u00e9", TensorType::kI64, {2}},
                                         {"scalar", TensorType::kU8, {}}};
  SafetensorsWriter writer(file("m.safetensors"), specs, {{"format", "pt"}, {"step", "7"}});
  const auto bytes = bytes_of_values(a);
  writer.write(bytes.first(13));  // pieces need not end with an element
  writer.write(bytes.subspan(13));
  writer.write(bytes_of_values(b));
  EXPECT_FALSE(fs::exists(file("m.safetensors")));
  const std::byte scalar{42};
  writer.write({&scalar, 1});
  writer.finish();

  const SafetensorsFile read(file("m.safetensors"));
  EXPECT_EQ(read.metadata().at("step"), "7");
  ASSERT_EQ(read.tensors().size(), 4u);
  for (const TensorSpec& spec : specs) {
    ASSERT_NE(read.find(spec.name), nullptr) << spec.name;
    EXPECT_EQ(read.find(spec.name)->spec.type, spec.type);
    EXPECT_EQ(read.find(spec.name)->spec.shape, spec.shape);
  }
  std::vector<float> part(7);
  read.read_floats(*read.find("model.layers.0.weight"), 11, part);
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], a[11 + i]);
  std::vector<std::int64_t> counts(2);
  read.read(*read.find("counts \"quoted\" \u00e9"), 0, std::as_writable_bytes(std::span(counts)));
  EXPECT_EQ(counts, b);
  EXPECT_EQ(read.find("absent"), nullptr);
  EXPECT_EQ(get(file("m.safetensors")).size() % 8, (a.size() * 4 + 16 + 1) % 8);  // data aligned
}

TEST_F(Safetensors, HalvesBecomeFloatsExactly) {
  // 1, -2, smallest subnormal, largest, infinity, NaN.
  const std::vector<std::uint16_t> half = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x7e00};
  std::vector<std::uint16_t> brain(20000);
  for (std::size_t i = 0; i < brain.size(); ++i) brain[i] = static_cast<std::uint16_t>(3 * i);
  const std::vector<TensorSpec> specs = {{"half", TensorType::kF16, {6}},
                                         {"brain", TensorType::kBf16, {20000}},
                                         {"f8", TensorType::kF8E4M3, {1}}};
  SafetensorsWriter writer(file("m"), specs);
  writer.write(bytes_of_values(half));
  writer.write(bytes_of_values(brain));
  writer.write(std::as_bytes(std::span("x", 1)));
  writer.finish();
  const SafetensorsFile read(file("m"));
  std::vector<float> values(6);
  read.read_floats(*read.find("half"), 0, values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -2.0f);
  EXPECT_EQ(values[2], 0x1p-24f);
  EXPECT_EQ(values[3], 65504.0f);
  EXPECT_TRUE(std::isinf(values[4]));
  EXPECT_TRUE(std::isnan(values[5]));
  values.resize(19000);
  read.read_floats(*read.find("brain"), 1000, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float expected = kernels::to_float(kernels::BFloat16{brain[1000 + i]});
    ASSERT_TRUE(values[i] == expected || (std::isnan(values[i]) && std::isnan(expected)));
  }
  values.resize(1);
  EXPECT_THROW(read.read_floats(*read.find("f8"), 0, values), Error);
}

TEST_F(Safetensors, HeadersAreCheckedInEveryRespect) {
  const auto one = [](std::string_view entry) { return fmt::format("{{\"w\":{}}}", entry); };
  EXPECT_EQ(parse_message(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 8),
            "accepted");
  EXPECT_EQ(parse_message("{}", 0), "accepted");
  EXPECT_EQ(parse_message(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})") + "   ", 8),
            "accepted");
  const std::pair<std::string, std::int64_t> wrong[] = {
      {"", 0},
      {"[]", 0},
      {"{}", 8},                                                                 // data left over
      {one(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"), 8},           // dtype
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8},           // size
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8},          // negative
      {one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,10]})"), 10},       // fraction
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 7},           // beyond the data
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[1,9]})"), 9},           // hole in front
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8},           // backwards
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), 8},          // negative
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), 8},             // one offset
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), 8},  // unknown key
      {one(R"({"dtype":"F32","data_offsets":[0,8]})"), 8},                       // no shape
      // The product wraps around to 8 in 64 bits.
      {one(R"({"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]})"), 8},
      {one(R"({"dtype":"F32","shape":[9223372036854775807,9223372036854775807,0],)"
           R"("data_offsets":[0,0]})"),
       0},
      {one("3"), 0},
      {R"({"__metadata__":{"a":1}})", 0},  // metadata is text
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1},  // name twice
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3},  // overlap
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       5}};  // hole
  for (const auto& [json, data_bytes] : wrong) {
    const std::string message = parse_message(json, data_bytes);
    EXPECT_NE(message, "accepted") << json;
    EXPECT_EQ(message.substr(0, 1), "x") << message;  // names the file
  }
}

TEST_F(Safetensors, FilesThatAreNoneAreNamed) {
  EXPECT_THROW(SafetensorsFile(file("absent")), Error);
  EXPECT_THROW(SafetensorsFile{folder_}, Error);
  const std::string good =
      file_bytes(R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "abc");
  put(file("good"), good);
  EXPECT_NO_THROW(SafetensorsFile(file("good")));
  for (std::size_t length = 0; length < good.size(); ++length) {  // cut at every byte
    put(file("cut"), good.substr(0, length));
    EXPECT_THROW(SafetensorsFile(file("cut")), Error) << length;
  }
  std::string huge = good;
  huge.replace(0, 8, 8, '\xff');
  put(file("huge"), huge);
  EXPECT_THROW(SafetensorsFile(file("huge")), Error);
}

TEST_F(Safetensors, AFileThatShrinksLaterIsAnErrorNotAnOverrun) {
  put(file("w"), file_bytes(R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "abc"));
  const SafetensorsFile read(file("w"));
  fs::resize_file(file("w"), fs::file_size(file("w")) - 1);
  std::vector<std::byte> bytes(3);
  EXPECT_THROW(read.read(*read.find("w"), 0, bytes), Error);
}

constexpr std::string_view kGoodHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
    R"("c":{"dtype":"I64","shape":[],"data_offsets":[32,40]}})";

/// Seeded damage: bytes changed, cut out and put in.
class Damage {
 public:
  void apply(std::string& bytes) {
    constexpr std::string_view kPieces[] = {
        "\"", "{", "}",       "[",    "]",    ",",      ":",
        "9",  "-", "\\u0000", "1e99", "null", "\"a\":", "99999999999999999999"};
    for (std::uint64_t change = random(4); change < 4 && !bytes.empty(); ++change) {
      const std::size_t at = random(bytes.size());
      switch (random(4)) {
        case 0:
          bytes[at] = static_cast<char>(random(256));
          break;
        case 1:
          bytes.erase(at, random(9));
          break;
        case 2:
          bytes.insert(at, kPieces[random(std::size(kPieces))]);
          break;
        default:
          bytes[at] = static_cast<char>('0' + random(10));
      }
    }
  }

 private:
  std::uint64_t random(std::uint64_t bound) { return stream_.below(draw_++, bound); }

  kernels::RandomStream stream_{.seed = 1, .site = kernels::RandomSite::kSynthetic};
  std::uint64_t draw_ = 0;
};

// A damaged header is refused, or all tensors that it announces lie within the data.
TEST_F(Safetensors, DamagedHeadersNeverAnnounceMoreThanThereIs) {
  Damage damage;
  int refused = 0, accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string json(kGoodHeader);
    damage.apply(json);
    try {
      std::int64_t end = 0;
      for (const StoredTensor& tensor : parse_safetensors_header(json, 40, "fuzz").tensors) {
        ASSERT_EQ(tensor.offset, end);
        ASSERT_GE(tensor.spec.size_bytes(), 0);
        end += tensor.spec.size_bytes();
      }
      ASSERT_EQ(end, 40);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("fuzz"), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 10);  // a changed name or metadata cannot be seen
}

TEST_F(Safetensors, DamagedFilesAreRefusedOrFullyReadable) {
  Damage damage;
  const std::string good = file_bytes(kGoodHeader, std::string(40, 'x'));
  int refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string bytes = good;
    damage.apply(bytes);
    put(file("fuzz"), bytes);
    try {
      const SafetensorsFile read(file("fuzz"));
      for (const StoredTensor& tensor : not_empty(read.tensors())) {
        std::vector<std::byte> data(static_cast<std::size_t>(tensor.spec.size_bytes()));
        read.read(tensor, 0, data);
      }
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("fuzz"), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST_F(Safetensors, WriterRefusesNamesTwice) {
  const std::vector<TensorSpec> twice = {{"w", TensorType::kU8, {1}}, {"w", TensorType::kU8, {1}}};
  EXPECT_THROW(SafetensorsWriter(file("m"), twice), Error);
  const std::vector<TensorSpec> odd = {{"\xff", TensorType::kU8, {1}}};
  EXPECT_THROW(SafetensorsWriter(file("m"), odd), Error);
  EXPECT_FALSE(fs::exists(file("m")));
}

TEST_F(Safetensors, AnUnfinishedWriteLeavesTheOldFile) {
  put(file("m"), "old");
  const std::vector<TensorSpec> specs = {{"w", TensorType::kU8, {2}}};
  { SafetensorsWriter writer(file("m"), specs); }
  EXPECT_EQ(get(file("m")), "old");
}

std::vector<TensorSpec> five_tensors() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 5; ++i) {
    specs.push_back({"t" + std::to_string(i), TensorType::kF32, {10, i + 1}});
  }
  return specs;
}

TEST_F(Safetensors, ModelsAreWrittenAndReadWholeOrInParts) {
  const std::vector<TensorSpec> specs = five_tensors();
  const TensorSource source = [](const TensorSpec& spec, const auto& write) {
    for (std::int64_t i = 0; i < spec.elements(); ++i) {
      const float value = static_cast<float>(i + 100 * (spec.name[1] - '0'));
      write(std::as_bytes(std::span(&value, 1)));
    }
  };
  for (const auto& [max_bytes, files] :
       {std::pair<std::int64_t, int>{240, 3}, {1, 5}, {1 << 20, 1}}) {
    write_safetensors_model(folder_, specs, max_bytes, source);
    EXPECT_EQ(fs::exists(file("model.safetensors.index.json")), files > 1);
    EXPECT_EQ(std::ssize(split_into_parts(specs, max_bytes)), files);
    const SafetensorsModel model(folder_);
    EXPECT_EQ(model.names().size(), specs.size());
    for (const TensorSpec& spec : specs) {
      ASSERT_NE(model.find(spec.name), nullptr);
      EXPECT_EQ(model.find(spec.name)->shape, spec.shape);
      std::vector<float> values(3);
      model.read_floats(spec.name, 7, values);
      EXPECT_EQ(values[2], static_cast<float>(9 + 100 * (spec.name[1] - '0')));
    }
    EXPECT_THROW(model.read_floats("absent", 0, {}), Error);
  }
}

TEST_F(Safetensors, IndexesAreNotTrusted) {
  put(file("part"), file_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a"));
  const auto index = [&](std::string_view json) {
    put(file("model.safetensors.index.json"), json);
    SafetensorsModel model(folder_);
    return model.names().size();
  };
  EXPECT_EQ(index(R"({"metadata":{"total_size":1},"weight_map":{"w":"part"}})"), 1u);
  for (const char* json :
       {R"({})", R"({"weight_map":{"v":"part"}})", R"({"weight_map":{"w":"absent"}})",
        R"({"weight_map":{"w":"../part"}})", R"({"weight_map":{"w":"/etc/hostname"}})",
        R"({"weight_map":{"w":".."}})", R"({"weight_map":{"w":""}})", R"({"weight_map":{"w":1}})",
        "not json"}) {
    EXPECT_THROW(index(json), Error) << json;
  }
  fs::remove(file("model.safetensors.index.json"));
  EXPECT_THROW(SafetensorsModel{folder_}, Error);  // neither an index nor model.safetensors
}

}  // namespace
}  // namespace shardwright::exec
