// SPDX-License-Identifier: Apache-2.0
#include "sim/score/kernel_scores.h"

#include "profiles/cluster_file.h"
#include "profiles/gpu_file.h"
#include "sim/score/validation.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {

namespace {

constexpr const char* kGemm =
    "gpu,m,n,k,time_us,source\n"
    "a100-80g,4096,4096,8192,1120,x\n"
    "a100-80g,4096,4096,4096,600,x\n";
constexpr const char* kCollectives =
    "gpu,gpus,nodes,collective,total_bytes,time_us\n"
    "h100-80g,8,1,all_gather,1048576,17.1\n"
    "h100-80g,16,2,reduce_scatter,1048576,40\n";

auto gemm_of(const std::string& text) {
  return read_gemm_table(CsvTable::parse(text, "g.csv"));
}
auto collectives_of(const std::string& text) {
  return read_collective_table(CsvTable::parse(text, "c.csv"));
}

TEST(KernelTables, ReadsProducts) {
  const std::vector<GemmRow> rows = gemm_of(kGemm);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].gpu, "a100-80g");
  EXPECT_EQ(rows[0].k, 8192);
  EXPECT_DOUBLE_EQ(rows[0].time_s, 1120e-6);
  EXPECT_EQ(rows[1].line, 3u);
}

TEST(KernelTables, ReadsCollectives) {
  const std::vector<CollectiveRow> rows = collectives_of(kCollectives);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].collective, Collective::kReduceScatter);
  EXPECT_EQ(rows[1].nodes, 2);
  EXPECT_EQ(rows[1].inter_bytes_per_s, 0);
  const auto with_network = collectives_of(
      "inter_gbps_per_node,gpu,gpus,nodes,collective,total_bytes,time_us\n"
      "800,a100-80g,16,2,all_reduce,100,5\n");
  EXPECT_DOUBLE_EQ(with_network[0].inter_bytes_per_s, 100e9);
}

TEST(KernelTables, NamesTheMissingColumn) {
  EXPECT_THAT([] { gemm_of("gpu,m,n,time_us\n"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("g.csv"), HasSubstr("k"))));
  EXPECT_THAT([] { collectives_of("gpu,gpus,collective,total_bytes,time_us\n"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("c.csv"), HasSubstr("nodes"))));
}

TEST(KernelTables, NamesTheLineOfABadValue) {
  const auto with = [](const std::string& row) { return "gpu,m,n,k,time_us\na,1,1,1,1\n" + row; };
  for (const char* row :
       {"a,0,1,1,1\n", "a,-5,1,1,1\n", "a,1,x,1,1\n", "a,1,1,1.5,1\n", "a,1,1,1,0\n",
        "a,1,1,1,nan\n", "a,1,1,1,-3\n", "a,1,99999999999999999999,1,1\n", ",1,1,1,1\n"}) {
    EXPECT_THAT([&] { gemm_of(with(row)); },
                ThrowsMessage<Error>(AllOf(HasSubstr("g.csv"), HasSubstr("line 3"))))
        << row;
  }
  const std::string header = "gpu,gpus,nodes,collective,total_bytes,time_us\n";
  for (const char* row : {"a,1,1,all_gather,5,1\n", "a,8,3,all_gather,5,1\n", "a,8,1,gossip,5,1\n",
                          "a,8,1,all_gather,0,1\n"}) {
    EXPECT_THAT([&] { collectives_of(header + row); },
                ThrowsMessage<Error>(AllOf(HasSubstr("c.csv"), HasSubstr("line 2"))))
        << row;
  }
}

TEST(KernelTables, SeesThatMoreWorkCannotTakeLessTime) {
  const auto rows = gemm_of(
      "gpu,m,n,k,time_us\n"
      "a,2048,5120,8192,987\n"  // disturbed: half of the next
      "a,4096,5120,8192,420\n"
      "b,8192,8192,8192,100\n"    // another GPU says nothing
      "a,4096,5120,4096,440\n");  // 5 % above a larger one: noise
  EXPECT_EQ(contradicted_rows(rows), (std::vector<bool>{true, false, false, false}));
}

// Whatever bytes come in, the readers return rows or throw Error.
TEST(KernelTables, SurvivesDamagedFiles) {
  std::mt19937 random(4);
  for (int i = 0; i < 4000; ++i) {
    std::string text = i % 2 == 0 ? kGemm : kCollectives;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else {
        text[at] = static_cast<char>("0123456789,.\n\"-eax\xff\0"[random() % 20]);
      }
      if (text.empty()) text = "x";
    }
    for (const bool gemm : {true, false}) {
      try {
        if (gemm) {
          for (const GemmRow& row : gemm_of(text)) ASSERT_GT(row.time_s, 0);
        } else {
          for (const CollectiveRow& row : collectives_of(text)) ASSERT_GT(row.bytes, 0);
        }
      } catch (const Error& error) {
        ASSERT_STRNE(error.what(), "");
      }
    }
  }
}

class ScoreKernels : public ::testing::Test {
 protected:
  static CsvTable published(const char* name) {
    return CsvTable::load(profiles::data_dir() / "published" / name);
  }
  const profiles::GpuCosts costs_ = profiles::load_gpu_costs();
};

// The figures that the shipped parameters claim, on the tables they were fitted to.
TEST_F(ScoreKernels, ShippedProductsAreWithinTheirTargets) {
  const KernelScore score = score_gemm(published("gemm.csv"), costs_);
  EXPECT_EQ(score.all.all.n, 1774);
  EXPECT_LE(score.training_size.by_gpu.at("a100-80g").mape, 0.04);
  // Disturbed rows alone add 3.6 points on the H100.
  EXPECT_LE(score.training_size_consistent.by_gpu.at("h100-80g").mape, 0.045);
  EXPECT_LE(score.training_size.by_gpu.at("h100-80g").median, 0.035);
  for (const char* gpu : {"a100-80g", "h100-80g"}) {
    const profiles::Provenance& claim = costs_.at(gpu).gemm.provenance;
    EXPECT_NEAR(score.training_size.by_gpu.at(gpu).mape, claim.in_sample.mape, 1e-4);
    EXPECT_LE(claim.held_out.mape, 1.1 * claim.in_sample.mape) << "over-fitted";
  }
}

TEST_F(ScoreKernels, ShippedCollectivesAreWithinTheirTargets) {
  const KernelScore score = score_collectives(published("collectives.csv"), costs_);
  EXPECT_EQ(score.all.all.n, 378);
  EXPECT_LE(score.all.all.mape, 0.05);
  for (const auto& [gpu, summary] : not_empty(score.all.by_gpu)) {
    EXPECT_LE(summary.mape, 0.06) << gpu;
    EXPECT_LE(costs_.at(gpu).collectives.provenance.held_out.mape, 0.06) << gpu;
  }
}

TEST_F(ScoreKernels, ErrorsAreOfThePredictionOverTheMeasurement) {
  const CsvTable table = CsvTable::parse(
      "gpu,m,n,k,time_us\na100-80g,4096,4096,8192,2000\nh100-80g,64,64,64,3\n", "g.csv");
  const KernelScore score = score_gemm(table, costs_);
  ASSERT_EQ(score.rows.size(), 2u);
  const KernelError& row = score.rows[0];
  EXPECT_DOUBLE_EQ(row.error, std::abs(row.predicted_s / 2000e-6 - 1));
  EXPECT_EQ(row.what, "4096x4096x8192");
  EXPECT_TRUE(row.training_size);
  EXPECT_FALSE(score.rows[1].training_size);
  EXPECT_EQ(score.training_size.all.n, 1);
  EXPECT_EQ(score.all.by_gpu.size(), 2u);
}

TEST_F(ScoreKernels, UnknownGpusAndUnlinkedNodesAreErrorsOfTheTable) {
  EXPECT_THAT(
      [&] {
        score_gemm(CsvTable::parse("gpu,m,n,k,time_us\na100-80gb,1,1,1,1\n", "g.csv"), costs_);
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("g.csv"), HasSubstr("line 2"), HasSubstr("a100-80g"))));
  const std::string header = "gpu,gpus,nodes,collective,total_bytes,time_us\n";
  EXPECT_THAT(
      [&] {
        score_collectives(CsvTable::parse(header + "l40s,16,2,all_gather,5,1\n", "c.csv"), costs_);
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("line 2"), HasSubstr("inter_gbps_per_node"))));
  const KernelScore score = score_collectives(
      CsvTable::parse(header + "a100-80g,16,2,all_gather,1000000000,5500\n", "c.csv"), costs_);
  EXPECT_LT(score.rows[0].error, 0.15);
}

TEST_F(ScoreKernels, EmptyTablesHaveEmptyScores) {
  const KernelScore score = score_gemm(CsvTable::parse("gpu,m,n,k,time_us\n", "g.csv"), costs_);
  EXPECT_EQ(score.all.all.n, 0);
  EXPECT_EQ(score.all.all.mape, 0);
}

TEST(ErrorSummary, GivesMeanMedianAndNinetiethPercentile) {
  std::vector<double> errors;
  for (int i = 10; i >= 1; --i) errors.push_back(i);
  const profiles::ErrorSummary summary = summarize_errors(errors);
  EXPECT_EQ(summary.n, 10);
  EXPECT_DOUBLE_EQ(summary.mape, 5.5);
  EXPECT_DOUBLE_EQ(summary.median, 5);
  EXPECT_DOUBLE_EQ(summary.p90, 9);
}

}  // namespace

// A GPU is what its file says: one that takes every value from another by `base` predicts exactly
// what that one does, whatever its name, strategy, framework or precision.

namespace {

struct PlanKind {
  const char* stack;
  Strategy strategy;
  Precision precision;
  std::optional<Fp8Recipe> recipe;
};

/// Times and bytes to the last digit, or that the plan is refused.
std::string predicted_on(const profiles::ClusterFile& cluster, const PlanKind& run) {
  Model model = llama_70b();
  model.layers = 2;
  Plan plan = plan_of(cluster.cluster.gpus_per_node, 1, 1, 2);
  plan.strategy = run.strategy;
  plan.stack = run.stack;
  plan.numerics.precision = run.precision;
  plan.numerics.fp8_recipe = run.recipe;
  try {
    const auto profile = profiles::make_profile(cluster, profiles::load_stack(run.stack));
    const Prediction p = predict(model, profile, plan);
    return fmt::format("{} s, {} and {} bytes", p.time.iteration_s, p.memory.peak_allocated_bytes,
                       p.memory.peak_reserved_bytes);
  } catch (const Error&) {
    return "refused";
  }
}

TEST(GpuByBase, PredictsWhatItsBaseDoes) {
  const PlanKind runs[] = {
      {"torch-compile", Strategy::kFsdp2, Precision::kBf16, {}},
      {"megatron-core-nemo", Strategy::kDistributedOptimizer, Precision::kBf16, {}},
      {"torch-compile", Strategy::kFsdp2, Precision::kFp8, Fp8Recipe::kTensorwise},
      {"megatron-core", Strategy::kDistributedOptimizer, Precision::kFp8, Fp8Recipe::kDelayed},
      {"megatron-core-nemo", Strategy::kDistributedOptimizer, Precision::kFp8, Fp8Recipe::kMxfp8},
  };
  int predicted = 0;
  for (const std::string& name : not_empty(profiles::shipped_names(profiles::DataKind::kGpu))) {
    const profiles::ClusterFile shipped =
        profiles::load_cluster(profiles::load_gpu(name).usual_cluster);
    profiles::ClusterFile own = shipped;
    own.gpu =
        profiles::parse_gpu(fmt::format(R"({{"id": "x100", "base": "{}"}})", name), "x100.json");
    own.cluster.gpu = own.gpu.gpu;
    for (const PlanKind& run : runs) {
      const std::string theirs = predicted_on(shipped, run);
      EXPECT_EQ(predicted_on(own, run), theirs)
          << name << " with " << run.stack << " in " << name_of(run.precision);
      if (theirs != "refused") ++predicted;
    }
  }
  EXPECT_GT(predicted, 100);
}

TEST(GpuByBase, OnlyGpusWithBlockScalesMultiplyMxfp8) {
  const PlanKind run = {"megatron-core", Strategy::kDistributedOptimizer, Precision::kFp8,
                        Fp8Recipe::kMxfp8};
  for (const char* cluster : {"dgx-b200", "gb300-nvl72", "mi355x-8x400"})
    EXPECT_NE(predicted_on(profiles::load_cluster(cluster), run), "refused") << cluster;
  for (const char* cluster : {"dgx-h100", "l40s-pcie8", "mi300x-8x400"})
    EXPECT_EQ(predicted_on(profiles::load_cluster(cluster), run), "refused") << cluster;
}

}  // namespace

}  // namespace shardwright::sim
