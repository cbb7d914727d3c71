// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/uncertainty.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "profiles/cluster_file.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

using testing::get;

namespace fs = std::filesystem;

class UncertaintyFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    file_ =
        shardwright::testing::temp_folder() / (std::string("residuals_") + test->name() + ".json");
  }
  void TearDown() override { fs::remove(file_); }

  fs::path file_;
};

TEST_F(UncertaintyFile, ThatShipsTellsEachRunWithoutItItsCellAndItsSource) {
  const HeldOutRecord record = load_held_out(shipped_residuals());
  double fitted = 0, source_out = 0;
  for (const HeldOutRun& run : not_empty(record.runs)) {
    fitted += std::abs(run.log_error_fitted);
    source_out += std::abs(run.log_error_source_out);
  }
  EXPECT_LT(fitted, source_out);
  for (const MovedConstant& constant : not_empty(record.constants)) {
    for (const auto& [low, high] : {constant.run_out, constant.source_out}) {
      EXPECT_LE(low, constant.value) << constant.name;
      EXPECT_GE(high, constant.value) << constant.name;
    }
  }
  EXPECT_LE(record.peaks_source_out, record.peaks);
}

TEST_F(UncertaintyFile, OfShippedFilesReachesTheProfileAndOfPartsDoesNot) {
  EXPECT_TRUE(load_profile("dgx-a100-80g", "hf-eager").uncertainty.known());
  EXPECT_FALSE(make_profile(load_cluster("dgx-a100-80g"), load_stack("hf-eager"), load_gpu_costs())
                   .uncertainty.known());
}

TEST_F(UncertaintyFile, NoFileDoesWorseThanAnError) {
  const std::string text = get(shipped_residuals());
  std::mt19937 random(8);
  for (int i = 0; i < 200; ++i) {
    std::string broken = text;
    for (int edits = 0; edits < 3; ++edits) {
      broken[random() % broken.size()] = static_cast<char>(random() % 256);
    }
    if (i % 4 == 0) broken.resize(random() % broken.size());
    std::ofstream(file_, std::ios::binary) << broken;
    try {
      load_uncertainty(file_);
      load_held_out(file_);
    } catch (const Error& error) {
      EXPECT_GT(std::string(error.what()).size(), 10U);
    }
  }
}

}  // namespace
}  // namespace shardwright::profiles
