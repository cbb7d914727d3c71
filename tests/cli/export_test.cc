// SPDX-License-Identifier: Apache-2.0

#include <map>
#include <regex>
#include <set>

#include "cli/export/settings.h"
#include "cli/machine/machine.h"
#include "sim/core/features.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_json.h"
#include "sim/strategies/lower.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

sim::Job inputs_for(const std::string& model, const std::string& stack) {
  sim::Job inputs;
  inputs.model_name = model;
  inputs.cluster_name = "dgx-h100";
  inputs.model = load_model(profiles::data_dir() / "models", model);
  inputs.profile = profiles::load_profile("dgx-h100", stack);
  return inputs;
}

/// Plans of every strategy, and of every knob that a trainer may lack, on two nodes.
std::vector<Plan> plans_for(const sim::Job& inputs, const std::string& stack) {
  const std::int64_t layers = inputs.model.layers;
  std::vector<Plan> plans;
  for (int s = 0; s < kStrategyCount; ++s) {
    Plan plan;
    plan.strategy = static_cast<Strategy>(s);
    if (!sim::has_schedule(plan.strategy, inputs.profile.stack) || features_of(plan).any())
      continue;
    plan.gpus = plan.strategy == Strategy::kSingle ? 1 : 16;
    plan.seq_len = 512;
    plan.micro_batch = 2;
    plan.grad_accum = 3;
    plan.stack = stack;
    plans.push_back(plan);
    plan.ckpt_layers = layers / 3;
    plans.push_back(plan);
    plan.ckpt_layers = layers;
    plan.recompute = Recompute::kSelectiveOp;
    plan.reduce_dtype = DType::kBf16;
    plans.push_back(plan);
    plan.recompute = Recompute::kPieces;
    plan.pieces = kPieceNorm | kPieceSwiglu;
    plan.moment_dtype = DType::kBf16;
    plan.attention = AttentionKind::kEager;
    plan.buffers = 4;
    plan.prefetch = 3;
    plans.push_back(plan);
    plan.master_dtype = DType::kBf16;
    plan.param_dtype = DType::kBf16;
    plans.push_back(plan);
  }
  return plans;
}

/// Knobs of the plan whose change a remark about the other one explains.
bool explains(const std::string& knob, const std::string& changed) {
  static const std::map<std::string, std::set<std::string>> kTogether = {
      {"ckpt_layers", {"ckpt_layers", "ckpt_stride", "recompute"}},
      {"recompute", {"recompute"}},
      {"prefetch", {"prefetch", "buffers"}},
      {"moment_dtype", {"moment_dtype", "master_dtype"}}};
  const auto found = kTogether.find(knob);
  return found == kTogether.end() ? knob == changed : found->second.contains(changed);
}

TEST(Export, WhatATrainerDoesOtherwiseIsAlwaysRemarkedOn) {
  int changes = 0;
  for (const char* model : {"llama-2-7b", "gpt2", "qwen3-8b"}) {
    for (const char* stack : {"native", "torch-compile"}) {
      const sim::Job inputs = inputs_for(model, stack);
      for (const Plan& plan : not_empty(plans_for(inputs, stack))) {
        for (const Trainer& trainer : not_empty(trainers())) {
          if (trainer.name == "yafsdp" && info_of(plan.strategy).zero_stage() < 2) {
            EXPECT_THROW(trainer.settings(inputs, plan), Error);
            continue;
          }
          if (trainer.name == "torchtune" && inputs.model.name != "llama-2-7b") {
            EXPECT_THROW(trainer.settings(inputs, plan), Error);  // it has no builder of them
            continue;
          }
          const TrainerSettings settings = trainer.settings(inputs, plan);
          const auto before = plan_to_json(plan), after = plan_to_json(settings.as_run);
          for (const auto& [knob, value] : not_empty(before.items())) {
            if (after.at(knob) == value) continue;
            ++changes;
            const bool explained =
                std::any_of(settings.remarks.begin(), settings.remarks.end(),
                            [&knob = knob](const Remark& r) { return explains(r.knob, knob); });
            EXPECT_TRUE(explained) << trainer.name << " changes " << knob << " of "
                                   << name_of(plan.strategy) << " in silence";
          }
          EXPECT_EQ(after.at("gpus"), before.at("gpus"));
          EXPECT_EQ(after.at("seq_len"), before.at("seq_len"));
          EXPECT_EQ(after.at("micro_batch"), before.at("micro_batch"));
        }
      }
    }
  }
  EXPECT_GT(changes, 1000);
}

void expect_toml(const std::string& text) {
  const std::regex section(R"(\[[a-z_]+\])"), comment(R"(#.*|)"),
      setting(
          R"([a-z_]+ = (-?\d+(\.\d+)?|true|false|"[^"\\]*"|\["[a-z]+"(, "[a-z]+")*\])( +#.*)?)");
  std::istringstream lines(text);
  std::set<std::string> seen;
  std::string line, in;
  while (std::getline(lines, line)) {
    if (std::regex_match(line, comment)) continue;
    if (std::regex_match(line, section)) {
      in = line;
      EXPECT_TRUE(seen.insert(in).second) << line;
      continue;
    }
    EXPECT_TRUE(std::regex_match(line, setting)) << line;
    EXPECT_TRUE(seen.insert(in + line.substr(0, line.find(' '))).second) << line;
  }
}

void expect_yaml(const std::string& text) {
  const std::regex comment(R"(#.*|)"),
      setting(R"((  )?[a-z_0-9]+:( ([A-Za-z0-9_]+|'[A-Za-z]+'))?)");
  std::istringstream lines(text);
  std::set<std::string> seen;
  std::string line, parent;
  while (std::getline(lines, line)) {
    if (std::regex_match(line, comment)) continue;
    EXPECT_TRUE(std::regex_match(line, setting)) << line;
    const bool nested = line.starts_with("  ");
    if (!nested) parent = line.substr(0, line.find(':'));
    EXPECT_TRUE(seen.insert(parent + line.substr(0, line.find(':'))).second) << line;
  }
}

// Every file by our own strict reading, and by Python's parsers of the formats where there are any.
TEST(Export, WritesWhatTheFormatsOwnParsersRead) {
  const fs::path folder = testing::temp_folder() / "parsed";
  fs::create_directories(folder);
  const std::map<std::string_view, const char*> endings = {
      {"torchtitan", ".py"},   {"torchtitan-main", ".py"}, {"torchtitan-0.2", ".toml"},
      {"accelerate", ".yaml"}, {"yafsdp", ".py"},          {"deepspeed", ".json"}};
  int files = 0;
  for (const char* model : {"llama-3-8b", "gpt2", "pythia-160m", "gemma-2-2b"}) {
    const sim::Job inputs = inputs_for(model, "torch-eager");
    for (const Plan& plan : plans_for(inputs, "torch-eager")) {
      for (const Trainer& trainer : trainers()) {
        if (!endings.contains(trainer.name))
          continue;  // Megatron's: see model_parallel_export_test
        if (trainer.name == "yafsdp" && info_of(plan.strategy).zero_stage() < 2) continue;
        const std::string text =
            trainer_file(trainer, trainer.settings(inputs, plan),
                         {"a name\nwith = a line\x01 \"of\" its own", "import nonsense ]["})
                .text();
        if (trainer.name == "torchtitan-0.2") expect_toml(text);
        if (trainer.name == "accelerate") expect_yaml(text);
        if (trainer.name == "deepspeed") {
          EXPECT_TRUE(json::parse(text).at("_comment").is_array());
        }
        std::ofstream(folder / (std::to_string(++files) + endings.at(trainer.name))) << text;
      }
    }
  }
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  const ProgramResult result = run_program({python.string(), "-c", R"(
import ast, glob, json, sys
try: import tomllib
except ImportError: tomllib = None
try: import yaml
except ImportError: yaml = None
count = 0
for path in glob.glob(sys.argv[1] + '/*'):
    text = open(path, encoding='utf-8').read()
    count += 1
    if path.endswith('.py'): ast.parse(text)
    if path.endswith('.json'): assert json.loads(text)['gradient_clipping'] == 1.0
    if path.endswith('.toml') and tomllib: assert tomllib.loads(text)['training']['seq_len'] == 512
    if path.endswith('.yaml') and yaml: assert yaml.safe_load(text)['num_processes'] in (1, 16)
print(count))",
                                            folder.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, std::to_string(files) + "\n");
}

TEST(Export, TellsTorchtitanWhichLayersToCheckpoint) {
  const sim::Job inputs = inputs_for("llama-3-70b", "torch-eager");
  Plan plan;
  plan.strategy = Strategy::kFsdp2;
  plan.gpus = 64;
  plan.stack = "torch-eager";
  const auto body = [&](std::int64_t layers) {
    plan.ckpt_layers = layers;
    return torchtitan_toml_settings(inputs, plan);
  };
  EXPECT_THAT(body(0).body.text(), HasSubstr("mode = \"none\""));
  EXPECT_THAT(body(80).body.text(), HasSubstr("mode = \"full\""));
  const TrainerSettings fourth = body(20);  // layers 4, 8, ..., 80
  EXPECT_THAT(fourth.body.text(), HasSubstr("mode = \"selective\"\nselective_ac_option = \"4\""));
  EXPECT_EQ(fourth.as_run.ckpt_layers, 20);
  EXPECT_EQ(fourth.as_run.ckpt_stride, 4);
  EXPECT_EQ(body(27).as_run.ckpt_layers, 40);  // every second: never fewer than planned
  EXPECT_EQ(body(41).as_run.ckpt_layers, 80);
  EXPECT_THAT(body(41).body.text(), HasSubstr("mode = \"full\""));
  EXPECT_THAT(body(0).body.text(), HasSubstr("name = \"llama3\"\nflavor = \"70B\""));
  EXPECT_THAT(body(0).body.text(), HasSubstr("data_parallel_shard_degree = 64"));
}

TEST(Export, WritesAFunctionForTodaysTorchtitan) {
  const sim::Job inputs = inputs_for("qwen3-8b", "torch-compile");
  Plan plan;
  plan.strategy = Strategy::kFsdp2;
  plan.gpus = 64;
  plan.stack = "torch-compile";
  const auto settings = [&](std::int64_t layers, Recompute recompute) {
    plan.ckpt_layers = layers;
    plan.recompute = recompute;
    return torchtitan_settings(inputs, plan);
  };
  const TrainerSettings none = settings(0, Recompute::kNone);
  expect_says(none.body.text(), {"def plan():\n    config = flavor()\n"
                                 "    config.model_spec = model_registry(\"8B\")\n",
                                 "config.activation_checkpoint = None",
                                 "config.parallelism.data_parallel_shard_degree = 64",
                                 "config.compile.enable = True"});
  const TrainerSettings third = settings(12, Recompute::kFull);
  EXPECT_THAT(third.body.text(), HasSubstr("config.activation_checkpoint = FullAC.Config()"));
  EXPECT_EQ(third.as_run.ckpt_layers, 36) << "0.3 knows no every n-th layer";
  EXPECT_THAT(settings(36, Recompute::kSelectiveOp).body.text(),
              HasSubstr("config.activation_checkpoint = SelectiveAC.Config()"));
}

TEST(Export, DeepSpeedSumsGradientsInTheTypeThatItImplements) {
  const sim::Job inputs = inputs_for("llama-2-7b", "hf-eager");
  Plan plan;
  plan.strategy = Strategy::kDdp;
  plan.gpus = 8;
  plan.grad_accum = 4;
  plan.stack = "hf-eager";
  const TrainerSettings ddp = deepspeed_settings(inputs, plan);
  EXPECT_FALSE(json::parse(ddp.body.text()).contains("data_types"));
  EXPECT_TRUE(std::any_of(ddp.remarks.begin(), ddp.remarks.end(), [](const Remark& remark) {
    return remark.knob == "grad_accum" && remark.lost;
  }));
  plan.strategy = Strategy::kZero2;
  EXPECT_EQ(json::parse(deepspeed_settings(inputs, plan).body.text())
                .at("data_types")
                .at("grad_accum_dtype"),
            "fp32");
}

TEST(Export, NamesTheLayersOfEveryFamily) {
  std::set<std::string> families;
  for (const auto& file : not_empty(fs::directory_iterator(profiles::data_dir() / "models"))) {
    const Model model = load_model(profiles::data_dir() / "models", file.path().stem().string());
    families.insert(model.family);
    if (model.family == "grok-1") continue;  // Transformers has no class for it
    if (!model.kinds.empty()) continue;      // refused
    EXPECT_FALSE(module_names(model).layer_class.empty());
  }
  EXPECT_GE(families.size(), 8u);
  Model unknown;
  unknown.family = "bert";
  EXPECT_THROW(module_names(unknown), Error);
}

TEST(Export, ArrangesHybridShardingInEveryTrainer) {
  const sim::Job inputs = inputs_for("llama-2-7b", "hf-eager");
  Plan plan;
  plan.strategy = Strategy::kHsdp;
  plan.gpus = 32;
  plan.stack = "hf-eager";
  const std::string node = accelerate_settings(inputs, plan).body.text();
  EXPECT_THAT(node, HasSubstr("fsdp_sharding_strategy: HYBRID_SHARD"));
  EXPECT_THAT(node, Not(HasSubstr("parallelism_config")));
  plan.shard_group = 16;
  const std::string two_nodes = accelerate_settings(inputs, plan).body.text();
  EXPECT_THAT(two_nodes, HasSubstr("fsdp_version: 2"));
  EXPECT_THAT(two_nodes, HasSubstr("dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 16"));
  const std::string titan = torchtitan_toml_settings(inputs, plan).body.text();
  EXPECT_THAT(titan, HasSubstr("replicate_degree = 2\ndata_parallel_shard_degree = 16"));
  const TrainerSettings deepspeed = deepspeed_settings(inputs, plan);
  EXPECT_FALSE(
      json::parse(deepspeed.body.text()).at("zero_optimization").contains("mics_shard_size"));
  EXPECT_EQ(deepspeed.as_run.strategy, Strategy::kZero3);
  EXPECT_EQ(deepspeed.as_run.shard_group, 0);
  plan.shard_group = 1;
  EXPECT_THAT(accelerate_settings(inputs, plan).body.text(),
              HasSubstr("distributed_type: MULTI_GPU"));
}

/// A plan file for `model`, which checkpoints 5 of its layers.
std::string write_plan_file(const std::string& model, const std::string& name) {
  PlanDocument document;
  document.model = model;
  document.cluster = "dgx-h100";
  document.plan.gpus = 16;
  document.plan.ckpt_layers = 5;
  document.plan.grad_accum = 4;
  document.plan.stack = "hf-eager";
  write_plan(temp_path(name), document);
  return temp_path(name);
}

TEST(Export, KeepsThePlanAndSaysWhatIsLost) {
  const std::string plan = write_plan_file("llama-2-7b", "plan.json");
  const std::string plan_before = get(plan);
  const std::string predicted_before = shardwright({"predict", "--plan", plan, "--json"}).out;
  const std::string file = temp_path("accelerate.yaml");
  const ProgramResult result =
      shardwright({"export", "--plan", plan, "--format", "accelerate", "--out", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  expect_says(result.err, {"Not expressed: strategy: Accelerate has no yafsdp",
                           "Not expressed: ckpt_layers: 5 of 32 layers",
                           "Predicted for Accelerate with these settings (fsdp2"});
  const std::string text = get(file);
  EXPECT_THAT(text, HasSubstr("# - ckpt_layers: 5 of 32 layers are checkpointed"));
  EXPECT_THAT(text, HasSubstr("fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer"));
  EXPECT_EQ(get(plan), plan_before);
  EXPECT_EQ(shardwright({"predict", "--plan", plan, "--json"}).out, predicted_before);
}

TEST(Export, PrintsTheSettingsOrADocument) {
  const std::string plan = write_plan_file("llama-2-7b", "plan2.json");
  const ProgramResult text = shardwright({"export", "--plan", plan, "--format", "yafsdp"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("\nnum_ckpt_layers = 5\n"));
  EXPECT_THAT(text.out, HasSubstr("layers[:num_ckpt_layers]"));
  EXPECT_THAT(text.err, Not(HasSubstr("Not expressed")));
  const json document =
      document_of(shardwright({"export", "--plan", plan, "--format", "deepspeed", "--json"}));
  EXPECT_EQ(document.at("schema"), "shardwright.export/1.0");
  EXPECT_EQ(document.at("out"), nullptr);
  EXPECT_EQ(document.at("as_run").at("plan").at("strategy"), "zero3");
  EXPECT_GT(document.at("as_run").at("prediction").at("iteration_time_s"), 0);
  const json settings = json::parse(document.at("settings").get<std::string>());
  EXPECT_EQ(settings.at("train_batch_size"), 64);
  EXPECT_EQ(settings.at("gradient_accumulation_steps"), 4);
  EXPECT_EQ(settings.at("zero_optimization").at("stage"), 3);
}

TEST(Export, RefusesInOneSentence) {
  const std::string plan = write_plan_file("llama-2-7b", "plan3.json");
  const auto expect = [](const ProgramResult& result, int code, const std::string& words) {
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect(shardwright({"export", "--plan", plan, "--format", "deepsped"}), 3,
         "--format is 'deepsped', but it must be one of torchtitan, torchtitan-main, "
         "torchtitan-0.2, accelerate, "
         "yafsdp, deepspeed, axolotl, llama-factory, unsloth, torchtune, megatron-lm, "
         "megatron-bridge, "
         "did you mean 'deepspeed'?");
  expect(shardwright({"export", "--plan", plan}), 2, "--format is required");
  expect(shardwright({"export", "--plan", plan, "--format", "yafsdp", "--strategy", "ddp"}), 3,
         "the plan's strategy is ddp");
  expect(shardwright(
             {"export", "--plan", plan, "--format", "torchtitan", "--strategy", "fsdp1,fsdp2"}),
         3, "--strategy names 2 strategies");
}

}  // namespace
}  // namespace shardwright::cli
