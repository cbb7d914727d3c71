// SPDX-License-Identifier: Apache-2.0
// Guards the file of a calibrated profile: what is written is read back, older versions are read,
// newer ones are refused in one sentence.
#include "profiles/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "profiles/cluster_file.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;
using testing::refusal_of;

Calibration example() {
  Calibration record;
  record.date = "2026-11-21";
  record.parent = "dgx-h100";
  record.stack = "native";
  ObservationSource& source = record.sources.emplace_back();
  source.file = "trace.json";
  source.format = "shardwright";
  source.gpu = "NVIDIA H100";
  source.sm_count = 132;
  source.truncated = true;
  CalibratedGroup& group = record.groups.emplace_back();
  group.group = CostGroup::kAttention;
  group.rows = 4;
  group.observations = 40;
  group.held_out = {4, 0.02, 0.015, 0.04};
  group.quantiles = {-0.04, -0.01, 0, 0.01, 0.03};
  group.half_width = 0.021;
  record.values.push_back({"cost.gemm.e", 0.9, 0.8, 0.79, 0.81, 12});
  MeasuredRow& row = record.rows.emplace_back();
  row.operation.op = OpKind::kCastGradient;
  row.operation.phase = Phase::kReduce;
  row.operation.work.kind = WorkKind::kMemory;
  row.operation.work.memory_class = MemoryClass::kCast;
  row.operation.work.bytes = 1 << 20;
  row.operation.work.efficiency = 0.7;
  row.operation.sharers = 2;
  row.operation.contended = 0.25;
  row.operation.seconds = 1.5e-4;
  row.spread = 0.02;
  row.count = 33;
  row.lowered = true;
  MeasuredRow& host = record.rows.emplace_back();
  host.operation.work.kind = WorkKind::kHost;
  host.operation.work.kernels = 0;
  host.count = 5;
  return record;
}

std::string example_file(const std::string& schema = "") {
  std::string text = calibrated_json(
      "mine", "an example", "dgx-h100",
      {{"cost.gemm.e", R"({"value": 0.8, "source": "a test"})", "", ""},
       {"stack.host.step_s", "0.25", "", ""}},
      {{4096, 4096, 4096, 2, 1, 3e-4, 7, {}}, {128, 128, 128, 4, 2, 1e-5, 3, ProductLayout::kTN}},
      {"13.1.0", "NVIDIA H100", {{"NT 8x8x8", 2, 1e-5, 2e-5}}}, example());
  if (!schema.empty()) {
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
    json["schema"] = schema;
    text = json.dump();
  }
  return text;
}

TEST(Calibration, IsReadBackAsItWasWritten) {
  const ClusterFile file = parse_cluster(example_file(), "mine.json");
  ASSERT_TRUE(file.calibration);
  EXPECT_EQ(to_json(*file.calibration), to_json(example()));
  ASSERT_EQ(file.measured_products.size(), 2u);
  EXPECT_EQ(file.measured_products[1].sharers, 2);
  EXPECT_EQ(file.measured_products[0].seconds, 3e-4);
  EXPECT_FALSE(file.measured_products[0].layout);
  EXPECT_EQ(file.measured_products[1].layout, ProductLayout::kTN);
  EXPECT_EQ(file.product_choices.release, "13.1.0");
  ASSERT_EQ(file.product_choices.choices.size(), 1u);
  EXPECT_EQ(file.product_choices.choices[0].place, 2);
  // The whole file too, as inspect --json writes it.
  const ClusterFile again = parse_cluster(to_json(file), "again.json");
  EXPECT_EQ(to_json(again), to_json(file));
}

TEST(Calibration, ReachesTheProfile) {
  const ClusterFile file = parse_cluster(example_file(), "mine.json");
  const Profile native = make_profile(file, load_stack("native"));
  EXPECT_EQ(native.cost.gemm.values.e, 0.8);
  EXPECT_EQ(native.measured_products.size(), 2u);
  EXPECT_EQ(native.calibrated_half_width[static_cast<std::size_t>(CostGroup::kAttention)], 0.021);
  EXPECT_EQ(native.calibrated_half_width[static_cast<std::size_t>(CostGroup::kMemory)], 0);
  EXPECT_EQ(native.stack.host.step_s, 0.25);
  // Another stack's host was not measured.
  const Profile eager = make_profile(file, load_stack("hf-eager"));
  EXPECT_EQ(eager.cost.gemm.values.e, 0.8);
  EXPECT_EQ(eager.stack.host.step_s, load_profile("dgx-h100", "hf-eager").stack.host.step_s);
}

TEST(Calibration, BuildsOnAnotherCalibratedProfile) {
  const shardwright::testing::TempFolder folder;
  std::ofstream(folder.path() / "mine.json") << example_file();
  std::ofstream(folder.path() / "next.json")
      << R"({"schema": "shardwright.cluster/1.1", "base": "mine.json",
             "set": {"cost.gemm.e": 0.7}})";
  const ClusterFile file = load_cluster((folder.path() / "next.json").string());
  EXPECT_TRUE(file.calibration);
  EXPECT_EQ(make_profile(file, load_stack("native")).cost.gemm.values.e, 0.7);
  EXPECT_EQ(make_profile(file, load_stack("native")).stack.host.step_s, 0.25);
}

std::string refusal(const std::string& text) {
  return refusal_of([&] { parse_cluster(text, "mine.json"); });
}

TEST(Calibration, OlderVersionsAreReadAndNewerRefusedInASentence) {
  EXPECT_EQ(refusal(example_file("shardwright.cluster/1.0")), "accepted");
  EXPECT_EQ(
      refusal(example_file("shardwright.cluster/2.0")),
      "mine.json: schema is \"shardwright.cluster/2.0\", written by a newer Shardwright; this "
      "one reads up to \"shardwright.cluster/1.1\"");
  EXPECT_THAT(refusal(example_file("shardwright.cluster/1.2")), HasSubstr("newer Shardwright"));
  for (const char* wrong : {"shardwright.cluster/0.9", "shardwright.cluster/1.-1",
                            "shardwright.cluster/1", "shardwright.gpu/1.0", "1.1", ""}) {
    EXPECT_THAT(refusal(example_file(*wrong == 0 ? "x" : wrong)), HasSubstr("schema")) << wrong;
  }
}

// Every value of the record in turn replaced by something it must not be.
TEST(Calibration, DamagedFilesAreErrorsAndNothingWorse) {
  const auto good = nlohmann::json::parse(example_file());
  const auto flat = good.flatten();
  const nlohmann::json hostile[] = {nullptr, -1, 1e300, "word", true, nlohmann::json::array()};
  int refused = 0, tried = 0;
  for (const auto& [pointer, value] : flat.items()) {
    if (pointer == "/base") continue;  // names another file
    for (const auto& bad : hostile) {
      auto damaged = good;
      damaged[nlohmann::json::json_pointer(pointer)] = bad;
      ++tried;
      try {
        const ClusterFile file = parse_cluster(damaged.dump(), "mine.json");
        make_profile(file, load_stack("native"));
      } catch (const Error& error) {
        ++refused;
        EXPECT_THAT(error.what(), HasSubstr("mine.json")) << pointer << " = " << bad;
      }
    }
  }
  EXPECT_GT(refused, tried / 2);
}

}  // namespace
}  // namespace shardwright::profiles
