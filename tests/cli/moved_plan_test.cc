// SPDX-License-Identifier: Apache-2.0
// Guards that a plan file means the same in another folder and on another machine: the model's
// configuration and a cluster that does not ship travel in it.

#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 1024,
  "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
  "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
  "architectures": ["LlamaForCausalLM"]})";

TEST(MovedPlan, PredictsTheSameWithoutTheFilesThatItWasMadeFrom) {
  const testing::TempFolder folder;
  const fs::path model = folder.path() / "cfg/own-model/config.json";
  const fs::path cluster = folder.path() / "own-cluster.json";
  put(model, kConfig);
  put(cluster, R"({"base": "dgx-h100", "id": "own-cluster", "nic_efficiency": 0.5,
                   "set": {"cost.gemm.e": 0.8}})");
  const std::string plan = folder.path() / "plan.json";
  const json best = document_of(shardwright({"tune", "--model", model.string(), "--cluster",
                                             cluster.string(), "--gpus", "16", "--seq-len", "1k",
                                             "--global-batch", "32", "--out", plan, "--json"}))
                        .at("best")
                        .at("prediction");
  fs::remove_all(model.parent_path());
  fs::remove(cluster);
  const ProgramResult predicted = shardwright({"predict", "--plan", plan, "--json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_EQ(json::parse(predicted.out).at("iteration_time_s"), best.at("iteration_time_s"));
  EXPECT_EQ(json::parse(predicted.out).at("memory"), best.at("memory"));
  const ProgramResult exported = shardwright({"export", "--plan", plan, "--format", "accelerate"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  // What is given beside the plan is read as it is now.
  expect_end(shardwright({"predict", "--plan", plan, "--model", model.string()}), 3,
             {"no such file"});
}

TEST(MovedPlan, ADamagedConfigurationIsToldByFileAndKey) {
  const testing::TempFolder folder;
  const std::string plan = folder.path() / "plan.json";
  json document = {{"schema", "shardwright.plan/1.0"},
                   {"model", "cfg/own/config.json"},
                   {"cluster", "dgx-h100"},
                   {"plan", {{"strategy", "yafsdp"}, {"gpus", 8}}},
                   {"model_config", json::parse(kConfig)}};
  document["model_config"]["hidden_size"] = -1;
  put(plan, document.dump());
  expect_end(shardwright({"predict", "--plan", plan}), 3,
             {"plan.json: model_config: hidden_size is -1"});
}

}  // namespace
}  // namespace shardwright::cli
