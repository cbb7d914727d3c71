// SPDX-License-Identifier: Apache-2.0
// Shapes of files as trainers' users write them, each with what its own software makes of it. Every
// one of them was once read as something else, or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/config/setting.h"
#include "tests/support/expect_error.h"
#include "tests/support/files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;
using testing::written;

ProgramResult import_of(const std::string& file, const std::vector<std::string>& flags) {
  std::vector<std::string> arguments{SHARDWRIGHT_BINARY, "import-config", file, "--cluster",
                                     "dgx-h100"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return run_program(arguments, {"LC_ALL=C"});
}

json imported(const std::string& file, std::vector<std::string> flags) {
  flags.emplace_back("--json");
  const ProgramResult result = import_of(file, flags);
  EXPECT_EQ(result.exit_code, 0) << file << ": " << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

std::string assumed(const json& answer) {
  return answer.at("assumed").dump();
}

bool leaves(const json& answer, const std::string& key) {
  for (const json& one : answer.at("not_taken")) {
    if (one.at("key") == key) return true;
  }
  return false;
}

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
  // 7 billion parameters of layers in four bits, one of embedding and head in bf16.
  EXPECT_TRUE(answer.at("prediction").at("memory").at("fits"));
  const json& held = answer.at("prediction").at("memory").at("breakdown_bytes");
  EXPECT_NEAR(held.at("parameters").get<double>() / (1 << 30),
              6.98 * 0.516 / 1.074 + 2 * 1.05 / 1.074, 0.3);
}

TEST(ImportShapes, OtherTrainingsOfAxolotlAreRefused) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  expect_error(import_of(written("dpo.yml", kQlora + "rl: dpo\n"), {}), 3, "rl is 'dpo'");
  expect_error(import_of(written("part.yml", kQlora + "unfrozen_parameters:\n  - lm_head\n"), {}),
               3, "unfrozen_parameters[0]");
}

// --- DeepSpeed and Accelerate ---

TEST(ImportShapes, AutoIsTheTrainersDefaultAndSaid) {
  const std::vector<std::string> flags{"--model",   "llama-3.1-8b", "--gpus",        "8",
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

TEST(ImportShapes, AccelerateWithoutDistributionIsOneGpu) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const std::vector<std::string> flags{"--model", "llama-3.2-1b", "--seq-len", "2048"};
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
  const std::vector<std::string> flags{"--model", "llama-3.1-8b"};
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

TEST(ImportShapes, AFunctionThatBeginsFromAnotherHasItsSettings) {
  const json derived =
      imported(written("titan.py", kTitan) + ":llama3_8b_fp8", {"--model", "llama-3.1-8b"});
  EXPECT_EQ(derived.at("plan").at("seq_len"), 8192);
  EXPECT_EQ(derived.at("plan").at("micro_batch"), 2);
  EXPECT_EQ(derived.at("plan").at("gpus"), 16);
  EXPECT_EQ(derived.at("plan").at("precision"), "fp8");
  EXPECT_EQ(derived.at("plan").at("fp8_recipe"), "rowwise");
  // What a condition decides that nobody runs is neither taken nor kept silent about.
  EXPECT_EQ(derived.at("plan").value("tp", 1), 1);
  EXPECT_TRUE(leaves(derived, "parallelism.tensor_parallel_degree"));
}

// --- Megatron-Bridge and Megatron-LM ---

fs::path bridge() {
  const fs::path root = testing::temp_folder() / "tree" / "bridge" / "recipes";
  fs::create_directories(root / "llama");
  std::ofstream(root / "common.py") << R"py(
SEQUENCE_LENGTH_4K: int = 4096

def _peft_common():
    opt_cfg, scheduler_cfg = fused_adam(lr=1e-4)
    cfg = ConfigContainer(
        train=TrainingConfig(global_batch_size=128, micro_batch_size=1),
        optimizer=opt_cfg,
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        dataset=default_dataset(seq_length=2048),
        mixed_precision="bf16_mixed",
        peft=LoRA(dim=32, alpha=32),
    )
    return cfg

def fused_adam(lr):
    return OptimizerConfig(optimizer="adam", lr=lr), SchedulerConfig()

def adapters(scheme, **kwargs):
    if scheme is None:
        return None
    if isinstance(scheme, str) and scheme.lower() == "lora":
        return LoRA(**kwargs)
    raise ValueError(scheme)
)py";
  std::ofstream(root / "llama" / "llama3.py") << R"py(
from bridge.recipes.common import _peft_common, adapters, SEQUENCE_LENGTH_4K

def small_peft_1gpu_h100_config(scheme="lora"):
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").get_model_config()
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.seq_length = SEQUENCE_LENGTH_4K
    cfg.dataset.seq_length = SEQUENCE_LENGTH_4K
    cfg.peft = adapters(scheme, dim=8)
    cfg.train.global_batch_size = 4 * 2
    cfg.model.recompute_modules = None
    return cfg

def large_peft_2gpu_h100_config():
    cfg = small_peft_1gpu_h100_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    return cfg

def whole_2gpu_h100_config():
    cfg = small_peft_1gpu_h100_config(scheme=None)
    cfg.optimizer.lr = some_function()
    return cfg
)py";
  return root / "llama" / "llama3.py";
}

TEST(ImportShapes, AdaptersOfMegatronBridgeAreLora) {
  const std::string file = bridge().string();
  const json small = imported(file + ":small_peft_1gpu_h100_config", {});
  EXPECT_EQ(small.at("plan").at("lora"), 8);
  EXPECT_EQ(small.at("plan").at("gpus"), 1);  // by its name
  EXPECT_EQ(small.at("plan").at("seq_len"), 4096);
  EXPECT_EQ(small.at("plan").at("grad_accum"), 8);
  EXPECT_EQ(small.at("model"), "meta-llama/Meta-Llama-3-8B");
  EXPECT_TRUE(small.at("prediction").at("memory").at("fits"));
  const json large = imported(file + ":large_peft_2gpu_h100_config", {});
  EXPECT_EQ(large.at("plan").at("lora"), 8);
  EXPECT_EQ(large.at("plan").at("tp"), 2);
  EXPECT_EQ(large.at("plan").at("seq_len"), 4096);
  std::ofstream(bridge().parent_path() / "names.py")
      << "from bridge.recipes.llama.llama3 import large_peft_2gpu_h100_config as large\n";
  const json named =
      imported((bridge().parent_path() / "names.py").string() + ":large", {"--gpus", "2"});
  EXPECT_EQ(named.at("plan"), large.at("plan"));
  const json whole = imported(file + ":whole_2gpu_h100_config", {});
  EXPECT_EQ(whole.at("plan").value("lora", 0), 0);
}

TEST(ImportShapes, ARecipeWhoseBaseIsNotBesideItSaysSo) {
  const std::string file = written("alone.py", R"py(
from megatron.bridge.recipes.common import _peft_common

def mine():
    cfg = _peft_common()
    cfg.model.tensor_model_parallel_size = 2
    return cfg
)py");
  const json answer = imported(file, {"--model", "llama-3.1-8b"});
  EXPECT_EQ(answer.at("plan").at("lora"), 32);
  EXPECT_EQ(answer.at("plan").at("seq_len"), 2048);
  EXPECT_THAT(assumed(answer), HasSubstr("begins with _peft_common"));
}

TEST(ImportShapes, MegatronsOwnTestsKeepArgumentsInYaml) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const json answer = imported(written("model_config.yaml", R"(
ENV_VARS:
  NCCL_ALGO: Ring
BASE_MODEL_ARGS: &BASE
  --seq-length: 1024
  --micro-batch-size: 2
MODEL_ARGS:
  <<: *BASE
  --num-layers: 12
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 2
  --use-distributed-optimizer: true
TEST_TYPE: regular
)"),
                               {"--model", "llama-3.2-1b"});
  EXPECT_EQ(answer.at("format"), "megatron");
  EXPECT_EQ(answer.at("plan").at("tp"), 2);
  EXPECT_EQ(answer.at("plan").at("micro_batch"), 4);
  EXPECT_EQ(answer.at("plan").at("seq_len"), 1024);  // of what is merged in
  EXPECT_EQ(answer.at("plan").at("strategy"), "distributed-optimizer");
}

TEST(ImportShapes, EncodersAreRefused) {
  expect_error(import_of(written("t5.sh",
                                 "--tensor-model-parallel-size 2 --encoder-seq-length 512 "
                                 "--decoder-seq-length 128 --micro-batch-size 4"),
                         {"--model", "llama-3.2-1b"}),
               3, "decoder_seq_length is '128'");
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

TEST(ImportShapes, FollowingEnds) {
  // A function that calls itself, and ten that call the next one ten times each.
  EXPECT_EQ(followed("def f():\n  c = f()\n  c.x.y = 1\n  return c\n"), "taken");
  std::string many = "def f():\n  c.x.y = 1\n";
  for (int i = 0; i < 10; ++i) many += "  g0()\n";
  for (int level = 0; level < 12; ++level) {
    many += "def g" + std::to_string(level) + "():\n";
    for (int i = 0; i < 10; ++i) many += "  g" + std::to_string(level + 1) + "()\n";
  }
  EXPECT_THAT(followed(many), HasSubstr("too often to be followed"));
  std::string chain = "def f():\n  c.x = 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  EXPECT_THAT(followed(chain), HasSubstr("more than 500 parts"));
  std::string elifs = "def f():\n  if a: c.x = 1\n";
  for (int i = 0; i < 5000; ++i) elifs += "  elif a: c.x = 2\n";
  EXPECT_THAT(followed(elifs), HasSubstr("nest too deeply"));
  EXPECT_EQ(followed("def f():\n  c.x.y = {**a, 1}\n"), "taken");
  // A config that holds itself.
  EXPECT_THAT(followed("def f():\n  c.x.y = 1\n  c.x.z = c\n  return c\n"),
              HasSubstr("nests too deeply"));
}

}  // namespace
}  // namespace shardwright::cli
