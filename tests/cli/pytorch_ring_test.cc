// SPDX-License-Identifier: Apache-2.0
// As a user of PyTorch meets it: traces of an FSDP2 job, then calibrate, then predict of what the
// job would do under YaFSDP. The traces are written from a simulated truth that is unlike what
// ships, so that the answer is known.

#include "sim/core/hf/config.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"
#include "tests/cli/program.h"
#include "tests/support/kineto_from_step.h"

namespace shardwright::cli {
namespace {

const std::vector<std::string> kTruth = {"stack.host.forward_launch_s=1.1e-5",
                                         "stack.norm.forward_efficiency=0.7",
                                         "stack.norm.backward_efficiency=0.6",
                                         "stack.rope.forward_efficiency=0.5",
                                         "stack.copies.copy=0.6",
                                         "cost.gemm.e=0.78",
                                         "cost.attention.fa2.forward_flops=3.1e14",
                                         "cost.attention.fa2.backward_flops=2.6e14",
                                         "cluster.nic_efficiency=0.75"};

TEST(PytorchRing, TracesOfFsdpPredictYaFsdp) {
  const testing::TempFolder folder;
  // Llama-2-7B with fewer layers, as its config.json says.
  json config = json::parse(std::ifstream(profiles::data_dir() / "models" / "llama-2-7b.json"));
  config["num_hidden_layers"] = 4;
  config.erase("_aliases");
  const std::string model_path = folder.path() / "config.json";
  std::ofstream(model_path) << config;
  const Model model = load_model(profiles::data_dir() / "models", model_path);

  Plan plan;
  plan.strategy = Strategy::kFsdp2;
  plan.gpus = 16;
  plan.seq_len = 4096;
  plan.recompute = Recompute::kNone;
  plan.stack = "torch-eager";
  const profiles::Profile truth = profiles::load_profile("dgx-h100", "torch-eager", kTruth);
  sim::Predictor predictor(model, truth);
  Timeline timeline;
  sim::PredictOptions options;
  options.timeline = &timeline;
  predictor.predict(plan, options);
  testing::KinetoJob job{&model, &plan, &predictor.program().stages.front(), &timeline};
  job.steps = 6;
  const std::string trace = folder.path() / "rank0.json";
  std::ofstream(trace) << testing::kineto_trace(job);

  const std::string cluster = folder.path() / "mine.json", stack = folder.path() / "theirs.json";
  const ProgramResult calibrated =
      run_program({SHARDWRIGHT_BINARY, "calibrate", "--trace", trace, "--base", "dgx-h100",
                   "--model", model_path, "--out", cluster, "--stack-out", stack});
  ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;

  const auto predicted = [&](const std::string& on, const std::string& with) {
    const ProgramResult result = run_program(
        {SHARDWRIGHT_BINARY, "predict", "--model", model_path, "--cluster", on, "--stack", with,
         "--strategy", "yafsdp", "--gpus", "32", "--seq-len", "4096", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out).at("iteration_time_s").get<double>();
  };
  plan.strategy = Strategy::kYafsdp;
  plan.gpus = 32;
  const double expected = sim::predict(model, truth, plan).time.iteration_s;
  EXPECT_GT(std::abs(predicted("dgx-h100", "torch-eager") / expected - 1), 0.1);
  EXPECT_NEAR(predicted(cluster, stack) / expected, 1, 0.03);

  // The profile is one of the library.
  const ProgramResult shown = run_program({SHARDWRIGHT_BINARY, "inspect", "profile", cluster});
  EXPECT_THAT(shown.out, HasSubstr("NVIDIA"));  // of the GPU's name, which a long path wraps
  EXPECT_THAT(shown.out, HasSubstr("cost.gemm.e"));
}

}  // namespace
}  // namespace shardwright::cli
