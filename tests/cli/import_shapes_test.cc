// SPDX-License-Identifier: Apache-2.0
// Shapes of files as trainers' users write them, each with what its own software makes of it. Every
// one of them was once read as something else, or refused.

#include <filesystem>

#include "cli/config/setting.h"
#include "tests/cli/imported_answer.h"

namespace shardwright::cli {
namespace {

// --- axolotl ---

const std::string kQlora = R"(
base_model: meta-llama/Meta-Llama-3-8B
load_in_4bit: true
adapter: qlora
sequence_len: 4_096
sample_packing: true
lora_r: 32
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
)";

TEST(ImportShapes, QloraOfAxolotlIsLora) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const json answer = imported(written("qlora.yml", kQlora), {"--gpus", "1"});
  EXPECT_EQ(answer.at("plan").at("lora"), 32);
  EXPECT_EQ(answer.at("plan").at("optimizer"), "adamw-8bit");
  EXPECT_EQ(answer.at("plan").at("seq_len"), 4096);  // with an underscore
  EXPECT_EQ(answer.at("plan").at("stack"), "hf-trainer");
  EXPECT_THAT(assumed(answer), HasSubstr("framework hf-trainer"));
  EXPECT_THAT(assumed(answer), HasSubstr("bf16 is auto"));
  EXPECT_FALSE(leaves(answer, "load_in_4bit"));
  EXPECT_EQ(answer.at("plan").at("quantize"), "nf4");
  const json both =
      imported(written("both.yml", kQlora + "load_in_8bit: false\n"), {"--gpus", "1"});
  EXPECT_THAT(both.at("taken").dump(),
              HasSubstr(R"({"key":"load_in_4bit","read_as":"frozen weights in nf4")"));
  // 7 billion parameters of layers in four bits, one of embedding and head in bf16.
  EXPECT_TRUE(answer.at("prediction").at("memory").at("fits"));
  const json& held = answer.at("prediction").at("memory").at("breakdown_bytes");
  EXPECT_NEAR(held.at("parameters").get<double>() / (1 << 30),
              6.98 * 0.516 / 1.074 + 2 * 1.05 / 1.074, 0.3);
}

TEST(ImportShapes, WhoAsksHfEagerForAdaptersIsToldWhatPricesThem) {
  expect_error(run_program({SHARDWRIGHT_BINARY, "predict", "--model", "llama-3-8b", "--cluster",
                            "dgx-h100", "--gpus", "8", "--stack", "hf-eager", "--lora", "16"},
                           {"LC_ALL=C"}),
               3, "expected a stack such as hf-trainer");
}

TEST(ImportShapes, OtherTrainingsOfAxolotlAreRefused) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  expect_error(import_of(written("dpo.yml", kQlora + "rl: dpo\n"), {}), 3, "rl is 'dpo'");
  expect_error(import_of(written("part.yml", kQlora + "unfrozen_parameters:\n  - lm_head\n"), {}),
               3, "unfrozen_parameters[0]");
}

TEST(ImportShapes, EmptySectionsAndListsOfAxolotl) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const auto strategy = [](const std::string& name, const std::string& more) {
    const json answer = imported(written(name, kQlora + more), {"--gpus", "8"});
    return answer.at("plan").at("strategy").get<std::string>();
  };
  EXPECT_EQ(strategy("empty.yml", "fsdp:\nfsdp_config:\n"), "ddp");
  EXPECT_EQ(strategy("full.yml", "fsdp:\n  - full_shard\n  - auto_wrap\n"), "fsdp1");
  EXPECT_EQ(strategy("grad.yml", "fsdp:\n  - shard_grad_op\n  - auto_wrap\n"), "fsdp1-grad-op");
  const json whole = imported(
      written("batch.yml", "batch_size: 16\n" + kQlora.substr(0, kQlora.find("gradient_accum")) +
                               kQlora.substr(kQlora.find("micro_batch_size"))),
      {"--gpus", "8"});
  EXPECT_EQ(whole.at("plan").at("grad_accum"), 1);  // what its schema fills in first
  EXPECT_TRUE(leaves(whole, "batch_size"));
  const json unsloth =
      imported(written("unsloth.yml", "gradient_checkpointing: unsloth\n" +
                                          kQlora.substr(0, kQlora.find("gradient_checkpointing"))),
               {"--gpus", "1"});
  EXPECT_EQ(unsloth.at("plan").at("ckpt_layers"), 32);
  EXPECT_TRUE(leaves(unsloth, "gradient_checkpointing"));
}

TEST(ImportShapes, LossesThatNeverHoldAllLogits) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const auto plan = [](const std::string& name, const std::string& text) {
    return imported(written(name, text), {"--gpus", "1"}).at("plan");
  };
  const std::string plugin =
      "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n"
      "  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n";
  EXPECT_FALSE(plan("whole.yml", kQlora).contains("loss_chunks"));
  EXPECT_EQ(plan("cut.yml", kQlora + plugin).at("loss_chunks"), 16);
  EXPECT_FALSE(
      plan("uncut.yml", kQlora + plugin + "cut_cross_entropy: false\n").contains("loss_chunks"));
  EXPECT_EQ(
      plan("liger.yml", kQlora + "liger_fused_linear_cross_entropy: true\n").at("loss_chunks"), 16);
  EXPECT_EQ(plan("chunks.yml", kQlora + "chunked_cross_entropy: true\n").at("loss_chunks"), 8);
  EXPECT_EQ(plan("factory.yaml",
                 "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: "
                 "lora\nbf16: true\nenable_liger_kernel: true\n")
                .at("loss_chunks"),
            16);
  expect_error(import_of(written("diffusion.yml",
                                 kQlora + "plugins:\n  - "
                                          "axolotl.integrations.diffusion.DiffusionPlugin\n"),
                         {}),
               3, "plugins[0] is 'axolotl.integrations.diffusion.DiffusionPlugin'");
}

// --- LLaMA-Factory and torchtune ---

TEST(ImportShapes, ShardingAndOptimizersOfLlamaFactory) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const std::string base =
      "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\nbf16: "
      "true\n";
  const json listed = imported(
      written("list.yaml", base + "fsdp:\n  - full_shard\n  - auto_wrap\nuse_muon: true\n"),
      {"--gpus", "8"});
  EXPECT_EQ(listed.at("plan").at("strategy"), "fsdp1");
  EXPECT_EQ(listed.at("plan").at("optimizer"), "muon");
  for (const char* other : {"use_kt: true", "tensor_model_parallel_size: 4"})
    expect_error(import_of(written("other.yaml", base + other + "\n"), {}), 3, "no such key");
}

TEST(ImportShapes, OtherRecipesOfTorchtuneAreRefused) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const std::string base =
      "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n";
  const std::string trains = "optimizer:\n  _component_: torch.optim.AdamW\nloss:\n  _component_: ";
  const std::string whole = base + trains + "torchtune.modules.loss.LinearCrossEntropyLoss\n";
  const auto refused = [](const std::string& name, const std::string& text, const char* what) {
    expect_error(import_of(written(name, text), {}), 3, what);
  };
  EXPECT_EQ(imported(written("whole.yaml", whole), {}).at("plan").at("micro_batch"), 2);
  refused("dpo.yaml", base + trains + "torchtune.rlhf.loss.DPOLoss\n", "loss._component_ is");
  refused("kd.yaml", whole + "teacher_model:\n  _component_: torchtune.models.llama3.llama3_8b\n",
          "teacher_model._component_ is");
  refused("generate.yaml", base, "optimizer is missing");
  const json half =
      imported(written("half.yaml", whole + "ac_mode: selective\nac_option: 2\n"), {});
  EXPECT_EQ(half.at("plan").at("ckpt_layers"), 16);
  EXPECT_EQ(half.at("plan").at("recompute"), "full");
}

// --- DeepSpeed and Accelerate ---

TEST(ImportShapes, AutoIsTheTrainersDefaultAndSaid) {
  const Words flags{"--model",   "llama-3.1-8b", "--gpus",        "8",
                    "--seq-len", "2048",         "--micro-batch", "1"};
  const json answer = imported(written("auto.json", R"({"bf16": {"enabled": "auto"},
      "fp16": {"enabled": "auto", "hysteresis": 2}, "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 3}})"),
                               flags);
  EXPECT_EQ(answer.at("plan").at("param_dtype"), "bf16");
  EXPECT_THAT(assumed(answer), HasSubstr("bf16.enabled is auto: up to the trainer, taken as bf16"));
  EXPECT_THAT(assumed(answer), HasSubstr("gradient_accumulation_steps is auto"));
  EXPECT_FALSE(leaves(answer, "fp16.hysteresis"));
  const json none = imported(written("none.json", R"({"zero_optimization": {"stage": 3}})"), flags);
  EXPECT_EQ(none.at("plan").at("param_dtype"), "fp32");
  EXPECT_THAT(assumed(none), HasSubstr("neither bf16 nor fp16 is enabled"));
  const json half = imported(
      written("half.json", R"({"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}})"),
      flags);
  EXPECT_EQ(half.at("plan").at("precision"), "fp16");
}

TEST(ImportShapes, TwoBatchSizesOfDeepspeedGiveTheThird) {
  const auto batch = [](const std::string& name, const std::string& sizes,
                        Words more = {"--gpus", "8"}) {
    more.insert(more.end(), {"--model", "llama-3.2-1b", "--seq-len", "2048"});
    const json plan =
        imported(written(name, "{" + sizes + R"(, "zero_optimization": {"stage": 1}})"), more)
            .at("plan");
    return std::vector<int>{plan.at("gpus"), plan.at("micro_batch"), plan.at("grad_accum")};
  };
  const std::string all = R"("train_batch_size": 64)",
                    accum = R"("gradient_accumulation_steps": 2)",
                    micro = R"("train_micro_batch_size_per_gpu": 2)";
  EXPECT_THAT(batch("all.json", all), ElementsAre(8, 8, 1));
  EXPECT_THAT(batch("accum.json", all + "," + accum), ElementsAre(8, 4, 2));
  EXPECT_THAT(batch("micro.json", all + "," + micro), ElementsAre(8, 2, 4));
  EXPECT_THAT(batch("three.json", all + "," + accum + "," + micro, {}), ElementsAre(16, 2, 2));
  // A flag changes its own and keeps the file's global batch.
  EXPECT_THAT(batch("flag.json", all, {"--gpus", "8", "--micro-batch", "2"}), ElementsAre(8, 2, 4));
  expect_error(import_of(written("odd.json", "{" + all + R"(, "gradient_accumulation_steps": 3})"),
                         {"--gpus", "8", "--model", "llama-3.2-1b"}),
               3, "expected a multiple of 24");
  expect_error(
      import_of(written("three_odd.json", "{" + all + R"(, "train_micro_batch_size_per_gpu": 3,
      "gradient_accumulation_steps": 1})"),
                {"--model", "llama-3.2-1b"}),
      3, "train_batch_size is '64', expected a multiple of the 3 sequences");
}

TEST(ImportShapes, AFileWithinAFileIsNotGuessed) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const std::string yaml = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  ";
  expect_error(import_of(written("file.yaml", yaml + "deepspeed_config_file: z1.json\n"),
                         {"--model", "llama-3.2-1b"}),
               3, "import-config of that file");
  const json nvme =
      imported(written("nvme.yaml", yaml + "zero_stage: 3\n  offload_optimizer_device: nvme\n"),
               {"--model", "llama-3.2-1b"});
  EXPECT_EQ(nvme.at("plan").at("offload"), "optimizer");
  EXPECT_TRUE(leaves(nvme, "deepspeed_config.offload_optimizer_device"));
}

TEST(ImportShapes, AccelerateWithoutDistributionIsOneGpu) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const Words flags{"--model", "llama-3.2-1b", "--seq-len", "2048"};
  const json one = imported(written("one.yaml",
                                    "compute_environment: LOCAL_MACHINE\ndistributed_type: \"NO\"\n"
                                    "mixed_precision: bf16\n"),
                            flags);
  EXPECT_EQ(one.at("plan").at("gpus"), 1);
  EXPECT_EQ(one.at("plan").at("strategy"), "single");
  const json four =
      imported(written("sp.yaml",
                       "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
                       "mixed_precision: bf16\nnum_processes: 4\nparallelism_config:\n"
                       "  parallelism_config_dp_shard_size: 2\n"
                       "  parallelism_config_sp_backend: deepspeed\n"
                       "  parallelism_config_sp_size: 2\n"),
               flags);
  EXPECT_EQ(four.at("plan").at("gpus"), 4);
  EXPECT_EQ(four.at("plan").at("cp"), 2);
}

// --- torchtitan ---

const char* const kTitan = R"py(
from . import model_registry

def enable_fp8(config):
    config.model_spec = model_registry(
        "8B", converters=[Float8LinearConverter.Config(recipe_name="rowwise")])

def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(lr=3e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 8192,
            max_context_length=8192,
            num_tokens_per_train_step=64 * 8192,
            wholly_new_setting=3,
            steps=1000,
        ),
        activation_checkpoint=FullAC.Config(),
        metrics=MetricsProcessor.Config(log_freq=1),
    )

def llama3_8b_fp8() -> Trainer.Config:
    config = llama3_8b()
    enable_fp8(config)
    if os.uname().machine == "arm64":
        config.parallelism.tensor_parallel_degree = 2
    config.parallelism.data_parallel_shard_degree = 16
    return config
)py";

TEST(ImportShapes, TorchtitanCountsTokensSince03) {
  const Words flags{"--model", "llama-3.1-8b"};
  const std::string file = written("titan.py", kTitan);
  const json base = imported(file + ":llama3_8b", flags);
  EXPECT_EQ(base.at("plan").at("seq_len"), 8192);
  EXPECT_EQ(base.at("plan").at("micro_batch"), 2);
  EXPECT_EQ(base.at("plan").at("grad_accum"), 4);  // 64 over 8 ranks of 2
  EXPECT_EQ(base.at("plan").at("ckpt_layers"), 32);
  // A key of a section that decides is never among those that are passed over.
  EXPECT_TRUE(leaves(base, "training.wholly_new_setting"));
  EXPECT_FALSE(leaves(base, "training.steps"));
}

TEST(ImportShapes, TorchtitanCompilesTheComponentsItSays) {
  if (!reads(SettingsLanguage::kToml)) GTEST_SKIP();
  const auto answer_of = [](const std::string& name, const std::string& components) {
    return imported(written(name,
                            "[training]\nseq_len = 4096\nlocal_batch_size = 1\n"
                            "[activation_checkpoint]\nmode = \"full\"\n[compile]\n"
                            "enable = true\n" +
                                components),
                    {"--model", "llama-3.1-8b"});
  };
  EXPECT_EQ(answer_of("both.toml", "").at("plan").at("stack"), "torch-compile");
  const json model = answer_of("model.toml", "components = [\"model\"]\n");
  EXPECT_EQ(model.at("plan").at("stack"), "torch-compile");
  EXPECT_TRUE(leaves(model, "compile.components"));
  const json loss = answer_of("loss.toml", "components = [\"loss\"]\n");
  EXPECT_EQ(loss.at("plan").at("stack"), "torch-eager");
  EXPECT_TRUE(leaves(loss, "compile.components"));
}

TEST(ImportShapes, AFunctionThatBeginsFromAnotherHasItsSettings) {
  const json derived =
      imported(written("titan.py", kTitan) + ":llama3_8b_fp8", {"--model", "llama-3.1-8b"});
  expect_has(derived.at("plan"), R"({"seq_len": 8192, "micro_batch": 2, "gpus": 16,
        "precision": "fp8", "fp8_recipe": "rowwise"})"_json);
  // What a condition decides that nobody runs is neither taken nor kept silent about.
  EXPECT_EQ(derived.at("plan").value("tp", 1), 1);
  EXPECT_TRUE(leaves(derived, "parallelism.tensor_parallel_degree"));
}

TEST(ImportShapes, ValuesOfAFileAreNotUsage) {
  const std::string file = written("bad.json", R"({"zero_optimization": {"stage": 2},
      "train_micro_batch_size_per_gpu": "two"})");
  expect_error(import_of(file, {"--model", "llama-3.1-8b"}), 3, "train_micro_batch_size_per_gpu");
}

// --- bounds of following ---

std::string followed(const std::string& text) {
  try {
    parse_settings(SettingsLanguage::kPython, text, "file", "f");
  } catch (const std::exception& error) {
    return error.what();
  }
  return "taken";
}

std::string times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(ImportShapes, FollowingEnds) {
  // A function that calls itself, and ten that call the next one ten times each.
  EXPECT_EQ(followed("def f():\n  c = f()\n  c.x.y = 1\n  return c\n"), "taken");
  std::string many = "def f():\n  c.x.y = 1\n" + times(10, "  g0()\n");
  for (int level = 0; level < 12; ++level) {
    many += "def g" + std::to_string(level) + "():\n" +
            times(10, "  g" + std::to_string(level + 1) + "()\n");
  }
  EXPECT_THAT(followed(many), HasSubstr("too often to be followed"));
  // A config that holds itself, and lists that hold each other many times.
  EXPECT_THAT(followed("def f():\n  c.x.y = 1\n  c.x.z = c\n  return c\n"),
              HasSubstr("nests too deeply"));
  const std::string shared = "a = [1]\n" + times(30, "a = [a, a, a, a]\n");
  EXPECT_THAT(followed(shared + "def f():\n  c.x = a\n"), HasSubstr("maps, lists and values"));
}

TEST(ImportShapes, WhatRecursesInPythonsParserIsBoundedBeforeIt) {
  EXPECT_THAT(followed("def f():\n  c.x = 1" + times(5000, " + 1")),
              HasSubstr("line 2: holds an expression of more than 1000 words"));
  for (const char* one : {"-", "1 if a else ", "lambda a, b=", "x["})
    EXPECT_THAT(followed("x = " + times(5000, one) + "1"), HasSubstr("file: line 1: ")) << one;
  // A line that ends as old Macintosh files do is no part of the comment before it.
  EXPECT_THAT(followed("# comment\rx = 1" + times(5000, " + 1")), HasSubstr("1000 words"));
  EXPECT_THAT(followed("x = f\"{" + times(100'000, "1+") + "1}\""), HasSubstr("line 1: holds"));
  EXPECT_THAT(followed("x = " + times(20'000, "9")), HasSubstr("more than 10000 letters"));
  EXPECT_THAT(followed(times(150'000, "x = 1\n")), HasSubstr("more than 400000 words"));
  EXPECT_THAT(followed("def f():\n  if a: c.x = 1\n" + times(5000, "  elif a: c.x = 2\n")),
              HasSubstr("blocks nest too deeply"));
  EXPECT_THAT(followed("x = 1\ndef f(:\n"), HasSubstr("file: line 2: is no Python 3."));
  EXPECT_THAT(followed(std::string("x = 1\0", 6)), HasSubstr("file: line 1: is no Python 3."));
  // What is just within all bounds is read.
  EXPECT_EQ(followed("def f():\n  c.x = " + times(85, "a(") + times(85, ")")), "taken");
}

TEST(ImportShapes, NothingOfAFileRuns) {
  // What Python would compute for hours, or take all memory for, keeps its text.
  const Settings settings = parse_settings(SettingsLanguage::kPython, R"py(
__import__("os").system("touch ran")
@os.system
def f():
    c.power.a = 10**10**9; c.text.a = "a" * 10**9
    c.all.a = [i for i in range(10**12)]; c.walrus.a = (n := 10)
    c.function.a = lambda: f(); c.format.a = f"{c}"
    while True: c.loop.a = 1
    return c
)py",
                                           "file", "f");
  std::string said;
  for (const Setting& one : settings) said += one.key + ": " + one.value + "\n";
  EXPECT_EQ(said,
            "power.a: 10**10**9\ntext.a: \"a\" * 10**9\nall.a[0]: [i for i in range(10**12)]\n"
            "walrus.a: n := 10\nfunction.a: lambda: f()\nformat.a: f\"{c}\"\n"
            "?loop.a: 1 if while True\n");
  EXPECT_FALSE(std::filesystem::exists("ran"));
}

TEST(ImportShapes, WithoutPythonOneSentenceSaysWhatIsReadAllTheSame) {
  const std::string file = written("recipe.py", "def f():\n  c.training.seq_len = 1\n");
  for (const char* why : {"/nowhere/python3 cannot be started", "/bin/false ended with exit code 1",
                          "YAML, TOML, JSON or flags is read without it"}) {
    const std::string python = std::string(why).substr(0, std::string(why).find(' '));
    expect_error(run_program({SHARDWRIGHT_BINARY, "import-config", file, "--cluster", "dgx-h100"},
                             {"LC_ALL=C", "SHARDWRIGHT_PYTHON=" + python}),
                 5, why);
  }
}

}  // namespace
}  // namespace shardwright::cli
