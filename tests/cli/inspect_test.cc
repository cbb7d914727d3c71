// SPDX-License-Identifier: Apache-2.0
// Guards `shardwright inspect`: the kinds, a model and a plan in words and as JSON.
#include "cli/inspect/inspect.h"

#include "cli/text.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_json.h"
#include "tests/cli/plain_text.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

ProgramResult inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SHARDWRIGHT_BINARY, "inspect"});
  return run_program(arguments);
}

void expect_inspect_error(const std::vector<std::string>& arguments, int exit_code,
                          const std::string& sentence) {
  const ProgramResult result = inspect(arguments);
  EXPECT_EQ(result.exit_code, exit_code);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "error: " + sentence + "\n");
}

/// The words with single spaces between them, however a table broke its lines.
std::string unwrapped(const std::string& text) {
  std::istringstream words(text);
  std::string result;
  for (std::string word; words >> word;) result += word + " ";
  return result;
}

TEST(Inspect, AsksForAKindAndAName) {
  expect_inspect_error(
      {}, 2,
      "shardwright inspect: no kind was given; the kinds are model, plan, run, checkpoint, "
      "cluster, gpu, stack, profile, models, clusters, gpus, stacks.");
  expect_inspect_error({"modle", "gpt2"}, 2,
                       "shardwright inspect has no kind 'modle', did you mean 'model'?");
  expect_inspect_error({"model"}, 2, "shardwright inspect model needs a name or a path.");
  expect_inspect_error(
      {"models", "gpt2"}, 2,
      "shardwright inspect models takes no further argument, but 'gpt2' was given.");
  expect_inspect_error({"model", "gpt2", "--seq-len", "0"}, 3,
                       "--seq-len is 0, but it must be a whole number from 1 to 16777216.");
}

TEST(Inspect, BadModelsAreExitCode3) {
  expect_inspect_error(
      {"model", "gpt22"}, 3,
      "model 'gpt22' is not known; the nearest are gpt2, gpt2-xl, gpt2-large; `shardwright "
      "inspect models` lists all, and the path of a config.json or of its folder is "
      "accepted too");
  expect_inspect_error(
      {"model", "/nonexistent/config.json"}, 3,
      "/nonexistent/config.json: no such file or folder, expected a config.json or a folder "
      "that holds one");
}

TEST(Inspect, AGpuWithoutCostsIsToldHowToNameASimilarOne) {
  json gpu = json::parse(std::ifstream(profiles::data_dir() / "gpus" / "h100-nvl.json"));
  gpu["id"] = "mine";
  gpu.erase("usual_cluster");
  const auto file = shardwright::testing::temp_folder() / "mine.json";
  std::ofstream(file) << gpu.dump();
  expect_end(inspect({"gpu", file.string()}), 3, {"needs a \"cost_as\""});
  gpu["cost_as"] = "h100-nvl";
  std::ofstream(file) << gpu.dump();
  expect_says(output_of(inspect({"gpu", file.string()})), {"cost parameters (those of h100-nvl)"});
}

// The usual 8192 tokens are more than GPT-2 takes.
TEST(Inspect, AModelOfFewPositionsIsShownAtItsOwnLength) {
  const json shown = json::parse(inspect({"model", "gpt2", "--json"}).out);
  EXPECT_EQ(shown.at("flops_per_token").at("seq_len"), 1024);
  EXPECT_GT(shown.at("training_memory").at("peak_bytes"), 0);
  EXPECT_EQ(json::parse(inspect({"model", "llama-3-8b", "--json"}).out)
                .at("flops_per_token")
                .at("seq_len"),
            8192);
}

TEST(Inspect, ModelInWords) {
  const ProgramResult result = inspect({"model", "Llama-3-70B", "--seq-len", "4096"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_says(result.out,
              {"llama-3-70b (llama, 70,553,706,496 parameters)\n",
               "64 query heads that share 8 key and value heads of 128", "1,050,673,152"});
  // 6 per weight of a matrix and 6*layers*q_dim*length for causal attention: 417.0 + 16.1 Gflop.
  EXPECT_THAT(result.out, HasSubstr("433.1 Gflop"));
  EXPECT_THAT(result.out, HasSubstr("320 KiB"));
}

// What mixes tokens in which layers, and what each kind of layer weighs.
TEST(Inspect, HybridsInWords) {
  const std::string kimi = unwrapped(inspect({"model", "kimi-linear-48b-a3b"}).out);
  EXPECT_THAT(kimi, HasSubstr("Kimi delta attention in 20 of the layers, 32 heads of 128 with keys "
                              "of 128;"));
  EXPECT_THAT(kimi, HasSubstr("a dense MLP of 9216 in 1 layers;"));
  const std::string super = unwrapped(inspect({"model", "nemotron-3-super-120b-a12b"}).out);
  EXPECT_THAT(super, HasSubstr("512 experts of 2688 (relu) at a width of 1024 for each token"));
  EXPECT_THAT(super, HasSubstr("each of 40 layers (experts)"));
  const std::string falcon = unwrapped(inspect({"model", "falcon-h1-34b"}).out);
  EXPECT_THAT(falcon, HasSubstr("each of 72 layers (attention beside Mamba-2 and MLP)"));
  const std::string gemma = unwrapped(inspect({"model", "gemma-4-31b"}).out);
  EXPECT_THAT(gemma,
              HasSubstr("each of 50 layers (windowed attention of 32 heads of 256 and MLP)"));
  // 50 windowed layers of 16 key heads of 256, 10 full ones of 4 of 512.
  EXPECT_THAT(gemma, HasSubstr("keys and values 880 KiB"));
}

TEST(Inspect, EveryModelFitsAHundredColumns) {
  for (const std::string& name : builtin_models(profiles::data_dir() / "models")) {
    expect_fits(inspect_model(name, 2048, Form::kText, kPlain));
  }
  expect_fits(list_models(Form::kText, kPlain));
}

TEST(Inspect, ModelAsJson) {
  const json document = json::parse(inspect_model("qwen2.5-0.5b", 1024, Form::kJson, kPlain));
  expect_has(document, R"({"schema": "shardwright.inspection/1.0", "kind": "model",
        "name": "qwen2.5-0.5b", "model": {"qkv_bias": true}})"_json);
  const json& counts = document.at("parameters");
  EXPECT_EQ(counts.at("total"), 494'032'768);
  EXPECT_EQ(counts.at("total").get<std::int64_t>(),
            counts.at("embedding").get<std::int64_t>() + counts.at("layers").get<std::int64_t>() +
                counts.at("final_norm").get<std::int64_t>() +
                counts.at("head").get<std::int64_t>());
  EXPECT_EQ(document.at("kv_bytes_per_token"), 24 * 2 * 128 * 2);
  EXPECT_EQ(document.at("flops_per_token").at("seq_len"), 1024);
}

TEST(Inspect, ModelsAreListed) {
  const json list = json::parse(inspect({"models", "--json"}).out).at("models");
  const auto at = std::find_if(list.begin(), list.end(),
                               [](const json& entry) { return entry.at("id") == "gpt2"; });
  ASSERT_NE(at, list.end());
  EXPECT_EQ(at->at("parameters"), 124'439'808);
  EXPECT_THAT(inspect({"models"}).out, HasSubstr("llama-3.1-405b"));
}

TEST(Inspect, PlanInWordsAndAsJson) {
  PlanDocument document;
  document.model = "llama-3-70b";
  document.cluster = "a100-80g-4xhdr200";
  document.plan.gpus = 256;
  document.plan.ckpt_layers = 20;
  document.plan.grad_accum = 2;
  document.prediction =
      R"({"iteration_time_s":6.95,"tokens_per_s":75423.0,"mfu":0.396,"memory":{"total_bytes":69793218560}})";
  document.command = "shardwright tune --model llama-3-70b --gpus 256";
  document.tool_version = "0.1.0";
  const std::filesystem::path path =
      shardwright::testing::temp_folder() / "shardwright_inspect_plan.json";
  write_plan(path, document);

  const ProgramResult words = inspect({"plan", path.string()});
  EXPECT_EQ(words.exit_code, 0) << words.err;
  expect_fits(words.out);
  expect_says(unwrapped(words.out),
              {"Model: llama-3-70b; cluster: a100-80g-4xhdr200.", "sharded over all GPUs",
               "the whole layer in the first 20 layers", "512 sequences, 1048576 tokens",
               "Predicted: 6.95 s a step, 75423 tokens/s, MFU 39.6 %, 65 GiB of memory a GPU.",
               "Made by: shardwright tune --model llama-3-70b --gpus 256 (version 0.1.0)"});

  const json inspection = json::parse(inspect_plan(path.string(), Form::kJson, kPlain));
  EXPECT_EQ(inspection.at("kind"), "plan");
  EXPECT_EQ(inspection.at("document"), json::parse(plan_text(document)));

  std::ofstream(path) << R"({"schema":"shardwright.plan/9.0"})";
  expect_inspect_error(
      {"plan", path.string()}, 3,
      path.string() +
          ": schema is shardwright.plan/9.0, which a newer shardwright wrote, expected "
          "shardwright.plan/1.0");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace shardwright::cli
