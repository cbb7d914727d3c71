// SPDX-License-Identifier: Apache-2.0

#include "cli/config/imported.h"
#include "cli/config/setting.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

std::string value_of(const Settings& settings, const std::string& key) {
  std::string value = "(not there)";
  for (const Setting& setting : settings) {
    if (setting.key == key) value = setting.value;
  }
  return value;
}

std::string refusal(SettingsLanguage language, const std::string& text,
                    const std::string& function = {}) {
  return refusal_of([&] { parse_settings(language, text, "file", function); });
}

TEST(Settings, APythonModuleSaysWhatItAssignsAndCallsWith) {
  const std::string text = R"py(
from torchtitan.config import TrainingConfig
"""a module; training.seq_len = 1"""

def changed() -> Trainer.Config:
    config = flavor()  # a = 1
    config.training.seq_len = 8_192
    config.training.dtype = "bfloat16"
    config.activation_checkpoint = FullAC.Config()
    config.training.local_batch_size = 2 * 4
    if multi:
        config.compile.enable = True
    return config

def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B", attn="flex"),
        training=TrainingConfig(local_batch_size=1, steps=[1, 2], lr=-3e-4),
        parallelism=ParallelismConfig(tensor_parallel_degree=8,),
        validator=None,
    )
)py";
  const Settings changed = parse_settings(SettingsLanguage::kPython, text, "a.py", "changed");
  EXPECT_EQ(value_of(changed, "training.seq_len"), "8192");
  EXPECT_EQ(value_of(changed, "training.dtype"), "bfloat16");
  EXPECT_EQ(value_of(changed, "activation_checkpoint"), "FullAC.Config()");
  EXPECT_EQ(value_of(changed, "training.local_batch_size"), "8");
  // What nobody decides here is no setting.
  EXPECT_EQ(value_of(changed, "compile.enable"), "(not there)");
  EXPECT_EQ(value_of(changed, "?compile.enable"), "true if multi");
  const Settings settings = parse_settings(SettingsLanguage::kPython, text, "a.py", "llama3_8b");
  EXPECT_EQ(value_of(settings, "model_spec"), "model_registry(8B)");
  EXPECT_EQ(value_of(settings, "training.local_batch_size"), "1");
  EXPECT_EQ(value_of(settings, "training.lr"), "-0.0003");
  EXPECT_EQ(value_of(settings, "parallelism.tensor_parallel_degree"), "8");
  EXPECT_EQ(value_of(settings, "validator"), "null");
  EXPECT_EQ(value_of(settings, "training.steps"), "(not there)");
  const std::string registry =
      "from torchtitan.models.llama3.config_registry import llama3_8b as flavor\n"
      "def other():\n  spec = model_registry(\"70B\")\n  return Config(model_spec=spec, "
      "loss=f(spec))\n";
  const Settings named = parse_settings(SettingsLanguage::kPython, registry, "a.py");
  EXPECT_EQ(value_of(named, "module"), "llama3");
  EXPECT_EQ(value_of(named, "config"), "llama3_8b");
  EXPECT_EQ(value_of(named, "model_spec"), "model_registry(70B)");
  const std::string two = "def a():\n  c.x.y = 1\n\ndef b():\n  c.x.y = 2\n";
  EXPECT_THAT(refusal(SettingsLanguage::kPython, two), HasSubstr("several functions"));
  EXPECT_THAT(refusal(SettingsLanguage::kPython, two, "c"), HasSubstr("one of a, b"));
  EXPECT_EQ(value_of(parse_settings(SettingsLanguage::kPython, two, "a.py", "b"), "x.y"), "2");
}

TEST(Settings, AScriptSaysItsFlagsWithItsVariables) {
  const std::string text = R"sh(#!/bin/bash
#SBATCH --nodes=4 --gpus-per-node=8
# --micro-batch-size 64
TP=8
SEQ=${SEQ:-4096}
ARGS=(
    --tensor-model-parallel-size $TP   # ranks
    --sequence-parallel
    --seq-length "${SEQ}"
)
MORE="--micro-batch-size 2 --bf16"
torchrun --nproc_per_node=8 --nnodes 2 train.py ${ARGS[@]} --recompute-modules core_attn mlp $MORE --global-batch-size $((8*16)) \
    --lr -1e-4 model.hidden_size=4096
)sh";
  const Settings settings = parse_settings(SettingsLanguage::kShell, text, "run.sh");
  EXPECT_EQ(value_of(settings, "nproc_per_node"), "8");
  EXPECT_EQ(value_of(settings, "nnodes"), "2");
  EXPECT_EQ(value_of(settings, "recompute_modules"), "core_attn mlp");
  EXPECT_EQ(value_of(settings, "nodes"), "4");
  EXPECT_EQ(value_of(settings, "gpus_per_node"), "8");
  EXPECT_EQ(value_of(settings, "tensor_model_parallel_size"), "8");
  EXPECT_EQ(value_of(settings, "sequence_parallel"), "true");
  EXPECT_EQ(value_of(settings, "seq_length"), "4096");
  EXPECT_EQ(value_of(settings, "micro_batch_size"), "2");
  EXPECT_EQ(value_of(settings, "bf16"), "true");
  EXPECT_EQ(value_of(settings, "lr"), "-1e-4");
  EXPECT_EQ(value_of(settings, "model.hidden_size"), "4096");
}

TEST(Settings, AreBounded) {
  std::string many;
  for (int i = 0; i < 30000; ++i) many += "--a 1\n";
  EXPECT_THAT(refusal(SettingsLanguage::kShell, many), HasSubstr("more than 20000"));
  EXPECT_THAT(refusal(SettingsLanguage::kShell, "--" + std::string(2000, 'a') + " 1"),
              HasSubstr("2000 bytes, expected at most 1024"));
  // A long variable that is filled in a thousand times, and braces that nothing closes.
  std::string filled = "A=" + std::string(60'000, 'x') + "\nB=(";
  for (int i = 0; i < 1000; ++i) filled += "$A ";
  EXPECT_THAT(refusal(SettingsLanguage::kShell, filled + ")"), HasSubstr("more than 32 MiB"));
  std::string braces;
  for (int i = 0; i < 500'000; ++i) braces += "${a ";
  EXPECT_EQ(refusal(SettingsLanguage::kShell, braces), "accepted");
  EXPECT_THAT(refusal(SettingsLanguage::kPython, "x = a(" + std::string(2000, 'b') + "=[1])"),
              HasSubstr("expected at most 1024"));
  // Empty lists say nothing, however long the way to them is and however many there are.
  EXPECT_THAT(refusal(SettingsLanguage::kJson, "{\"" + std::string(2000, 'k') + "\": [[],[]]}"),
              HasSubstr("the key kkk"));
  std::string empty = "{\"a\": [[]";
  for (int i = 0; i < 200'000; ++i) empty += ",[]";
  EXPECT_THAT(refusal(SettingsLanguage::kJson, empty + "]}"), HasSubstr("maps, lists and values"));
  if (reads(SettingsLanguage::kToml)) {
    // A letter of other alphabets is no space between a key and its "=".
    EXPECT_THAT(refusal(SettingsLanguage::kToml, "a\xc3\xa9 = 1"), HasSubstr("is no TOML"));
    EXPECT_EQ(refusal(SettingsLanguage::kToml, "a = \"\xc3\xa9\"  # \xca\x9e"), "accepted");
  }
  if (reads(SettingsLanguage::kYaml)) {
    // The same of lists that are empty, and of one that holds itself twice.
    std::string nothing = "a0: &a0 []\n";
    for (int i = 1; i < 12; ++i) {
      nothing += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
      for (int j = 0; j < 10; ++j) nothing += (j > 0 ? ", *a" : "*a") + std::to_string(i - 1);
      nothing += "]\n";
    }
    EXPECT_THAT(refusal(SettingsLanguage::kYaml, nothing), HasSubstr("maps, lists and values"));
    EXPECT_THAT(refusal(SettingsLanguage::kYaml, "a: &a [*a, *a]"), HasSubstr("nests too deeply"));
    // Ten levels of ten aliases each.
    std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
    for (int i = 1; i < 10; ++i) {
      const std::string before = "*a" + std::to_string(i - 1);
      bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
      for (int j = 0; j < 10; ++j) bomb += (j > 0 ? ", " : "") + before;
      bomb += "]\n";
    }
    EXPECT_THAT(refusal(SettingsLanguage::kYaml, bomb), HasSubstr("more than 20000"));
    EXPECT_THAT(refusal(SettingsLanguage::kYaml, "a: [1,\nb: 2"), HasSubstr("is no YAML"));
  }
  if (reads(SettingsLanguage::kToml)) {
    EXPECT_THAT(refusal(SettingsLanguage::kToml, "[a]\nb = \n"), HasSubstr("line 2: is no TOML"));
    EXPECT_THAT(refusal(SettingsLanguage::kToml, "a = 1\n[{b]\n"), HasSubstr("line 2: is no TOML"));
    std::string dots = "a";
    for (int i = 0; i < 100'000; ++i) dots += ".a";
    EXPECT_THAT(refusal(SettingsLanguage::kToml, dots + " = 1"), HasSubstr("more than 4096 dots"));
    EXPECT_THAT(refusal(SettingsLanguage::kToml, dots.substr(0, 401) + " = 1"),
                HasSubstr("nests too deeply"));
  }
}

ProgramResult import(const std::string& file, const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, "import-config", file}, flags), {"LC_ALL=C"});
}

const char* const kMegatron = R"sh(
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192
  --ffn-hidden-size 28672 --num-attention-heads 64 --tensor-model-parallel-size 8 --sequence-parallel
  --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 --micro-batch-size 1
  --global-batch-size 128 --seq-length 8192 --bf16 --use-distributed-optimizer
  --recompute-granularity full --recompute-method block --recompute-num-layers 1
  --moe-shared-expert-overlap --lr 1e-4 --save /x
)sh";

TEST(ImportConfig, ReadsAMegatronScript) {
  const json answer =
      document_of(import(written("pretrain.sh", kMegatron),
                         {"--cluster", "dgx-h100", "--model", "llama-3.1-70b", "--json"}));
  EXPECT_EQ(answer.at("format"), "megatron");
  const json& plan = answer.at("plan");
  expect_has(plan, R"({"gpus": 64, "tp": 8, "pp": 4, "virtual_stages": 4})"_json);
  EXPECT_EQ(plan.at("grad_accum"), 64);  // 128 over 64 / (8 x 4) ranks of 1
  EXPECT_EQ(plan.at("ckpt_layers"), 16);
  EXPECT_EQ(plan.at("strategy"), "distributed-optimizer");
  ASSERT_EQ(answer.at("not_taken").size(), 1U) << answer.at("not_taken").dump();
  EXPECT_EQ(answer.at("not_taken")[0].at("key"), "moe_shared_expert_overlap");
  EXPECT_GT(answer.at("prediction").at("iteration_time_s").get<double>(), 0);
}

TEST(ImportConfig, TheFixFitsAndChangesAsLittleAsPossible) {
  const std::string file = written("ds.json", R"({"train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "wall_clock_breakdown": true,
    "zero_optimization": {"stage": 3}})");
  const std::string out = temp_path("fixed.json");
  const json answer =
      document_of(import(file, {"--cluster", "dgx-h100", "--model", "llama-3.1-8b", "--gpus", "16",
                                "--seq-len", "4096", "--fix", "--json", "--out", out}));
  EXPECT_FALSE(answer.at("prediction").at("memory").at("fits"));
  const json& fix = answer.at("fix");
  EXPECT_TRUE(fix.at("prediction").at("memory").at("fits"));
  EXPECT_LE(fix.at("changes").size(), 4U);
  for (const json& change : not_empty(fix.at("changes")))
    EXPECT_NE(change.at("from"), change.at("to"));
  // The same sequences a step.
  const auto batch = [](const json& plan) {
    return plan.at("micro_batch").get<int>() * plan.at("grad_accum").get<int>();
  };
  EXPECT_EQ(batch(fix.at("plan")), batch(answer.at("plan")));
  const ProgramResult predicted =
      run_program({SHARDWRIGHT_BINARY, "predict", "--plan", out, "--json"}, {"LC_ALL=C"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_EQ(json::parse(predicted.out).at("memory").at("total_bytes"),
            fix.at("prediction").at("memory").at("total_bytes"));
}

TEST(ImportConfig, ABuilderOfNoShippedModelIsNoCrash) {
  for (const std::string builder :
       {"phi4.qlora_phi4_14b", "llama3_2_vision.qlora_llama3_2_vision_11b", "", "."}) {
    const std::string file =
        written("builder.yaml", "model:\n  _component_: torchtune.models." + builder +
                                    "\noptimizer:\n  _component_: torch.optim.AdamW\n");
    const ProgramResult result = import(file, {"--model", "llama-3-8b", "--cluster", "dgx-h100"});
    EXPECT_EQ(result.exit_code, 0) << builder << ": " << result.err;
    EXPECT_EQ(result.out.find("frozen weights in nf4") != std::string::npos,
              builder.find("qlora") != std::string::npos)
        << result.out;
  }
  const std::string shard = written("shard.yaml",
                                    "model:\n  _component_: torchtune.models.llama3.llama3_8b\n"
                                    "optimizer:\n  _component_: torch.optim.AdamW\n"
                                    "data_parallel_shard_dim: eight\n");
  expect_error(import(shard, {"--cluster", "dgx-h100"}), 3, "data_parallel_shard_dim is 'eight'");
}

TEST(ImportConfig, BadInputIsOneSentence) {
  const Words on{"--cluster", "dgx-h100", "--model", "llama-3.1-8b"};
  expect_error(import("nowhere.json", on), 3, "nowhere.json");
  expect_error(import(written("other.json", R"({"a": 1})"), on), 3, "no setting of a trainer");
  expect_error(import(written("cut.json", R"({"zero_optim)"), on), 3, "cut.json");
  const std::string zero = written("zero.json", R"({"zero_optimization": {"stage": "many"}})");
  expect_error(import(zero, on), 3, "zero_optimization.stage is 'many'");
  expect_error(import(written("ok.json", R"({"zero_optimization": {"stage": 2}})"), {}), 2,
               "--model is missing");
  const std::string uneven =
      written("uneven.sh", "--tensor-model-parallel-size 3 --seq-length 2048");
  Words seven = joined(on, {"--gpus", "7"});
  expect_error(import(uneven, seven), 3, "multiple of 3");
  Words form = joined(on, {"--format", "megatronn"});
  expect_error(import(zero, form), 3, "did you mean 'megatron'");
}

}  // namespace
}  // namespace shardwright::cli
