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

/// Megatron on H100, as many published.
RunKind known_run() {
  RunKind run;
  run.model_parallel = true;
  run.stack = "megatron-core";
  run.gpu = "h100-80g";
  run.architecture = "hopper";
  run.precision = "bf16";
  run.seq_len = 4096;
  run.hidden = 4096;
  run.layer_s = 0.05;
  return run;
}

double width(const RunKind& run) {
  return total_of(novelty_widths().of(run));
}

TEST(NoveltyWidths, AddUpAsSquares) {
  AddedWidths widths{};
  at(widths, WidthAxis::kGpu) = 3;
  at(widths, WidthAxis::kHost) = 4;
  EXPECT_DOUBLE_EQ(total_of(widths), 5);
}

TEST(NoveltyWidths, EveryNoveltyWidens) {
  const NoveltyWidths& shipped = novelty_widths();
  ASSERT_TRUE(shipped.known());
  const double plain = width(known_run());
  EXPECT_DOUBLE_EQ(plain, shipped.model_parallel);
  RunKind run = known_run();
  run.gpu = "h800";
  const double new_gpu = width(run);
  EXPECT_GT(new_gpu, plain);
  run.gpu_estimated = true;
  EXPECT_EQ(width(run), new_gpu) << "another of its generation is known";
  run.architecture = "cdna3";
  EXPECT_GT(width(run), new_gpu);
  run.gpu_known = true;  // by the user's trace
  EXPECT_DOUBLE_EQ(width(run), plain);

  run = known_run();
  run.stack = "nobody's";
  const double new_framework = width(run);
  EXPECT_GT(new_framework, plain);
  run = known_run();
  run.adapters = true;
  EXPECT_DOUBLE_EQ(width(run), new_framework);
  run = known_run();
  run.seq_len = 1 << 24;
  EXPECT_GT(width(run), plain);
}

// Experts are known of megatron-core, and not of torch-eager, whose other plans are published.
TEST(NoveltyWidths, ExpertsAreANoveltyOfTheFramework) {
  RunKind run = known_run();
  run.moe = true;
  const double balanced = width(run);
  EXPECT_GE(balanced, width(known_run()));
  run.stack = "torch-eager";
  EXPECT_GT(width(run), balanced);
  run = known_run();
  run.moe = true;
  run.knows_loads = false;
  const AddedWidths widths = novelty_widths().of(run);
  EXPECT_NEAR(at(widths, WidthAxis::kRouting), std::log(1.5) / 2, 1e-12);
}

TEST(NoveltyWidths, LayersQuickerThanAnyPublishedMayWaitForTheHost) {
  RunKind run = known_run();
  const double fastest = novelty_widths().fastest_dense_layer_s;
  ASSERT_GT(fastest, 0);
  run.layer_s = fastest / 1.5;
  EXPECT_NEAR(at(novelty_widths().of(run), WidthAxis::kHost), std::log(1.5), 1e-9);
  run.layer_s = fastest / 1000;
  EXPECT_NEAR(at(novelty_widths().of(run), WidthAxis::kHost), std::log(2), 1e-9);
  run.graphs = true;
  EXPECT_EQ(at(novelty_widths().of(run), WidthAxis::kHost), 0);
  run.graphs = false;
  run.layer_s = fastest;
  EXPECT_EQ(at(novelty_widths().of(run), WidthAxis::kHost), 0);
}

TEST(NoveltyWidths, PublishedSourcesAreNarrowerUnderDataParallelism) {
  RunKind run = known_run();
  run.model_parallel = false;
  run.stack = "torch-eager";
  run.gpu = "h100-96g-500w";
  const double stranger = at(novelty_widths().of(run), WidthAxis::kSource);
  run.known_source = true;
  EXPECT_LT(at(novelty_widths().of(run), WidthAxis::kSource), stranger);
}

}  // namespace

}  // namespace shardwright::profiles
