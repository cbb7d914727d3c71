// SPDX-License-Identifier: Apache-2.0
#include "profiles/gpu_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "profiles/data_file.h"
#include "profiles/gpu_cost.h"
#include "sim/core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"

namespace shardwright::profiles {

namespace {

TEST(KnownGpu, IsToldByItsNameWhereAFileHasNoCounts) {
  EXPECT_TRUE(is_named_as("NVIDIA A100-SXM4-80GB", "a100-80g"));
  EXPECT_FALSE(is_named_as("NVIDIA A100-SXM4-80GB", "a100-40g"));
  EXPECT_TRUE(is_named_as("NVIDIA H100 80GB HBM3", "h100-80g"));
  EXPECT_FALSE(is_named_as("NVIDIA H100 PCIe", "h100-80g"));
  EXPECT_TRUE(is_named_as("NVIDIA H100 PCIe", "h100-pcie"));
  EXPECT_FALSE(is_named_as("NVIDIA L40S", "l4"));
  EXPECT_FALSE(is_named_as("NVIDIA GB200", "b200"));
  EXPECT_EQ(kind_named("NVIDIA GeForce RTX 5090"), "rtx-5090");
  EXPECT_EQ(kind_named("NVIDIA GeForce RTX 5060 Ti"), "rtx-5060ti");
  EXPECT_EQ(kind_named("AMD Instinct MI300X"), "mi300x");
  EXPECT_EQ(kind_named("Tesla V100-SXM2-16GB"), "");
}

using nlohmann::json;
using ::testing::AllOf;
using testing::get;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
namespace fs = std::filesystem;
class GpuCostFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    file_ = fs::path(::testing::TempDir()) / (std::string("gpu_cost_") + test->name() + ".json");
  }
  void TearDown() override { fs::remove(file_); }

  GpuCosts load(const std::string& text) {
    std::ofstream(file_, std::ios::binary) << text;
    return load_gpu_costs(file_);
  }

  const std::string shipped_ = get(data_dir() / "fitted" / "gpu_cost.json");
  fs::path file_;
};

TEST_F(GpuCostFile, CoversEveryShippedGpuWithTheRatesOfItsDataSheet) {
  const GpuCosts costs = load_gpu_costs();
  int own = 0;
  for (const auto& entry : not_empty(fs::directory_iterator(data_dir() / "gpus"))) {
    const std::string id = entry.path().stem().string();
    const GpuFile file = load_gpu(id);
    EXPECT_FALSE(cost_of(file, costs).attention.empty()) << id;
    if (file.cost_as != id) continue;  // those of a similar one
    const GpuCost& cost = costs.at(id);
    EXPECT_NEAR(cost.rates.values.peak_flops / file.gpu.peak_bf16_flops, 1, 0.001) << id;
    EXPECT_EQ(cost.rates.values.sm_count, file.gpu.sm_count) << id;
    EXPECT_NEAR(cost.rates.values.hbm_bytes_per_s / file.gpu.hbm_bytes_per_s, 1, 0.001) << id;
    ++own;
  }
  EXPECT_GE(own, 24);
}

TEST_F(GpuCostFile, EveryNumberSaysWhereItComesFrom) {
  for (const auto& [id, gpu] : not_empty(load_gpu_costs().gpus)) {
    std::vector<Provenance> all{gpu.rates.provenance, gpu.gemm.provenance, gpu.memory.provenance,
                                gpu.collectives.provenance};
    for (const auto& [kernel, params] : gpu.attention) all.push_back(params.provenance);
    for (const Provenance& p : not_empty(all)) {
      EXPECT_GE(p.source.size(), 10u) << id;
      EXPECT_EQ(p.date.size(), 10u) << id;
      EXPECT_EQ(p.confidence == "fitted", p.held_out.n > 0) << id;
      EXPECT_EQ(p.confidence == "fitted" || !p.analogue_of.empty(), !p.command.empty()) << id;
    }
  }
}

TEST_F(GpuCostFile, AnaloguesRepeatTheGpuTheyName) {
  const GpuCosts costs = load_gpu_costs();
  int count = 0;
  for (const auto& [id, gpu] : not_empty(costs.gpus)) {
    const std::string& of = gpu.gemm.provenance.analogue_of;
    if (of.empty()) continue;
    EXPECT_EQ(gpu.gemm.values.k0, costs.at(of).gemm.values.k0) << id;
    EXPECT_EQ(gpu.gemm.values.e, costs.at(of).gemm.values.e) << id;
    ++count;
  }
  EXPECT_GT(count, 3);
}

TEST_F(GpuCostFile, NamesTheNearestGpu) {
  EXPECT_THAT([] { load_gpu_costs().at("a100-80gb"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("a100-80gb"), HasSubstr("'a100-80g'?"))));
}

TEST_F(GpuCostFile, NamesThePathOfABadValue) {
  struct Case {
    const char* pointer;
    json value;
    const char* path;
  };
  const Case cases[] = {
      {"/gpus/l40s/gemm/values/e", -1, "gpus.l40s.gemm.values.e"},
      {"/gpus/l40s/gemm/values/w", 1.5, "gpus.l40s.gemm.values.w"},
      {"/gpus/l40s/rates/values/sm_count", 0, "gpus.l40s.rates.values.sm_count"},
      {"/gpus/l40s/rates/values/peak_flops", "fast", "gpus.l40s.rates.values.peak_flops"},
      {"/gpus/l40s/memory/values/typo", 1, "typo"},
      {"/gpus/l40s/memory/confidence", "sure", "gpus.l40s.memory.confidence"},
      {"/gpus/l40s/collectives/values/simple/bytes_per_s", 0, "simple.bytes_per_s"},
      {"/nccl/values/ring_base_s", json::array({1e-6}), "nccl.values.ring_base_s"},
      {"/schema", "shardwright.gpu_cost/9", "schema"},
  };
  for (const Case& c : cases) {
    json document = json::parse(shipped_);
    document[json::json_pointer(c.pointer)] = c.value;
    EXPECT_THAT([&] { load(document.dump()); },
                ThrowsMessage<Error>(AllOf(HasSubstr(file_.string()), HasSubstr(c.path))))
        << c.pointer;
  }
  json document = json::parse(shipped_);
  document["gpus"]["l40s"]["gemm"]["values"].erase("k0");
  EXPECT_THAT([&] { load(document.dump()); },
              ThrowsMessage<Error>(HasSubstr("gpus.l40s.gemm.values.k0")));
}

// Whatever happens to the bytes, loading gives parameters or throws Error.
TEST_F(GpuCostFile, SurvivesDamagedFiles) {
  json document = json::parse(shipped_);
  for (auto gpu = document["gpus"].begin(); gpu != document["gpus"].end();)
    gpu = gpu.key() == "h100-80g" ? std::next(gpu) : document["gpus"].erase(gpu);
  const std::string small = document.dump();
  std::mt19937 random(6);
  for (int i = 0; i < 500; ++i) {
    std::string text = small;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 40);
      } else {
        text[at] = "0123456789,.{}[]\":-eE\xff"[random() % 22];
      }
    }
    try {
      load(text);
    } catch (const Error& error) {
      ASSERT_STRNE(error.what(), "");
    }
  }
}

}  // namespace

}  // namespace shardwright::profiles
