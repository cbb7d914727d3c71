// SPDX-License-Identifier: Apache-2.0
// How far predictions of published runs that are model-parallel are off. Bounds stand a little
// above what profiles/data/published/README.md shows; one is loosened only with a reason.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "profiles/data_dir.h"
#include "profiles/ledger/ledger.h"
#include "sim/core/base/csv.h"
#include "sim/score/stage_memory_score.h"
#include "sim/score/validation.h"

namespace shardwright::guard {
namespace {

TEST(ModelParallelTable, ErrorsStayWhereTheReadmeShowsThem) {
  const std::filesystem::path published = profiles::data_dir() / "published";
  const sim::Validation validation =
      sim::validate(profiles::load_ledger(published / "parallel.csv"));
  EXPECT_EQ(validation.all.time.n, 593);
  EXPECT_EQ(validation.all.suspect_time.n, 6);
  EXPECT_LE(validation.all.time.mape, 0.050);
  EXPECT_LE(validation.all.time.median, 0.036);
  EXPECT_LE(validation.all.wrong_outcomes, 18);
  const std::map<std::string, double> bounds{{"Aleph Alpha parallelization layouts", 0.037},
                                             // 0.035 while casts of two products were forgotten.
                                             {"NVIDIA dgxc-benchmarking", 0.037},
                                             {"SimuMax B200 real runs", 0.032},
                                             {"NeMo long-sequence summary", 0.022},
                                             // 0.042 before userbuffers added up as they do.
                                             {"MLPerf Training v5.0", 0.052},
                                             {"Megatron-Bridge", 0.070},
                                             {"BigScience JZ A100 3D", 0.049},
                                             {"Korthikanti et al. 2022", 0.04},
                                             {"llm-foundry benchmarks", 0.03},
                                             // 0.034 before fp8 steps consisted of the operations
                                             // that the executor runs in 16 bits.
                                             {"llmq", 0.04},
                                             {"torchtitan benchmarks", 0.091},
                                             // 0.056 before casts took the rate that is published.
                                             {"torchtitan commit logs", 0.067}};
  for (const auto& [source, bound] : bounds) {
    ASSERT_TRUE(validation.by_source.contains(source)) << source;
    EXPECT_LE(validation.by_source.at(source).time.mape, bound) << source;
  }
  const sim::StageMemoryScore stages =
      sim::score_stage_memory(CsvTable::load(published / "stage_memory.csv"), validation);
  EXPECT_EQ(stages.allocated.n, 160);
  EXPECT_LE(stages.allocated.mape, 0.015);
}

}  // namespace
}  // namespace shardwright::guard
