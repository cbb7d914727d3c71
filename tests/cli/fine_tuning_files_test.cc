// SPDX-License-Identifier: Apache-2.0
// Guards that files of axolotl, LLaMA-Factory, Unsloth and torchtune are read, of the shapes that
// those projects ship.

#include "cli/config/setting.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

json read_in(const std::string& file, Words more) {
  Words arguments = joined({"import-config", file, "--cluster", "dgx-h100", "--json"}, more);
  const ProgramResult result = shardwright(arguments);
  EXPECT_EQ(result.exit_code, 0) << file << ": " << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

bool left_over(const json& answer) {
  return !answer.at("not_taken").empty();
}

// The shape of examples/train_lora/llama3_lora_sft_ds3.yaml.
const std::string kFactoryLora = R"(### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]
### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
### output
output_dir: saves/llama3-8b/lora/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
### eval
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 500
)";

TEST(FineTuningFiles, LlamaFactorysExamplesAreRead) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const json lora = read_in(written("ds3.yaml", kFactoryLora), {"--gpus", "8"});
  EXPECT_EQ(lora.at("format"), "llama-factory");
  EXPECT_EQ(lora.at("prediction").at("inputs").at("parameters"), 8030261248);
  const json& plan = lora.at("plan");
  EXPECT_EQ(plan.at("strategy"), "zero3");
  EXPECT_EQ(plan.at("lora"), 8);  // its default
  EXPECT_EQ(plan.at("seq_len"), 2048);
  EXPECT_EQ(plan.at("grad_accum"), 2);
  EXPECT_EQ(plan.at("ckpt_layers"), 32);  // unless it is disabled
  EXPECT_EQ(plan.at("stack"), "hf-trainer");
  EXPECT_FALSE(left_over(lora)) << lora.at("not_taken").dump();
  const json four =
      read_in(written("q.yaml", kFactoryLora +
                                    "quantization_bit: 4\nlora_rank: 32\noptim: paged_adamw_8bit\n"
                                    "disable_gradient_checkpointing: true\n"),
              {"--gpus", "8"});
  expect_has(four.at("plan"), R"({"quantize": "nf4", "lora": 32,
        "optimizer": "adamw-8bit", "ckpt_layers": 0})"_json);
  const auto refused = [](const std::string& line, const char* part) {
    expect_error(shardwright({"import-config", written("no.yaml", kFactoryLora + line), "--cluster",
                              "dgx-h100"}),
                 3, part);
  };
  refused("stage: dpo\n", "stage is 'dpo', expected pt or sft");
  refused("finetuning_type: freeze\n", "expected lora or full");
  refused("use_galore: true\n", "use_galore is 'true'");
}

// The shape of Unsloth's notebooks.
const std::string kUnslothScript = R"(from unsloth import FastLanguageModel
import torch
from datasets import load_dataset
from trl import SFTTrainer, SFTConfig
max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Meta-Llama-3.1-8B-bnb-4bit",
    max_seq_length = max_seq_length,
    dtype = None,
    load_in_4bit = True,
)
model = FastLanguageModel.get_peft_model(
    model,
    r = 32,
    target_modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    lora_alpha = 16,
    lora_dropout = 0,
    bias = "none",
    use_gradient_checkpointing = True,
    random_state = 3407,
    use_rslora = False,
    loftq_config = None,
)
def formatting_prompts_func(examples):
    texts = [one + tokenizer.eos_token for one in examples["text"]]
    return {"text": texts}
dataset = load_dataset("yahma/alpaca-cleaned", split = "train")
dataset = dataset.map(formatting_prompts_func, batched = True)
trainer = SFTTrainer(
    model = model,
    tokenizer = tokenizer,
    train_dataset = dataset,
    dataset_text_field = "text",
    max_seq_length = max_seq_length,
    packing = True,
    args = SFTConfig(
        per_device_train_batch_size = 2,
        gradient_accumulation_steps = 8,
        warmup_steps = 5,
        max_steps = 60,
        learning_rate = 2e-4,
        logging_steps = 1,
        optim = "adamw_8bit",
        weight_decay = 0.01,
        lr_scheduler_type = "linear",
        seed = 3407,
        output_dir = "outputs",
        report_to = "none",
    ),
)
trainer_stats = trainer.train()
)";

TEST(FineTuningFiles, UnslothsScriptsAreRead) {
  const json answer = read_in(written("unsloth.py", kUnslothScript), {"--gpus", "1"});
  EXPECT_EQ(answer.at("format"), "unsloth");
  EXPECT_EQ(answer.at("model"), "llama-3.1-8b");
  const json& plan = answer.at("plan");
  expect_has(plan, R"({"strategy": "single", "lora": 32, "quantize": "nf4",
        "optimizer": "adamw-8bit", "seq_len": 2048, "micro_batch": 2, "grad_accum": 8,
        "ckpt_layers": 32, "loss_chunks": 16})"_json);
  EXPECT_FALSE(left_over(answer)) << answer.at("not_taken").dump();
  // What a script leaves to Unsloth is what Unsloth takes.
  const json bare = read_in(
      written("bare.py",
              "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
              "model, tokenizer = FastLanguageModel.from_pretrained('unsloth/Llama-3.2-1B', "
              "model_name='unsloth/Llama-3.2-1B', max_seq_length=4096, load_in_4bit=False)\n"
              "model = FastLanguageModel.get_peft_model(model)\n"
              "trainer = SFTTrainer(model=model, args=SFTConfig(output_dir='o'))\n"),
      {"--gpus", "2"});
  EXPECT_EQ(bare.at("plan").at("strategy"), "ddp");
  EXPECT_EQ(bare.at("plan").at("lora"), 16);
  EXPECT_FALSE(bare.at("plan").contains("quantize"));
  EXPECT_EQ(bare.at("plan").at("micro_batch"), 4);
  EXPECT_EQ(bare.at("plan").at("grad_accum"), 2);
  EXPECT_EQ(bare.at("plan").at("optimizer"), "adamw-8bit");
}

// The shape of studio/backend/assets/configs/lora_text.yaml.
TEST(FineTuningFiles, UnslothsYamlIsRead) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const std::string yaml =
      "model: unsloth/Llama-3.2-1B\ndata:\n  dataset: tatsu-lab/alpaca\n  format_type: auto\n"
      "training:\n  training_type: lora\n  max_seq_length: 2048\n  load_in_4bit: true\n"
      "  num_epochs: 1\n  learning_rate: 0.0002\n  batch_size: 2\n"
      "  gradient_accumulation_steps: 4\n  packing: true\n  train_on_completions: false\n"
      "  gradient_checkpointing: 'none'\nlora:\n  lora_r: 64\n  lora_alpha: 16\n"
      "  target_modules: 'q_proj,k_proj'\nlogging:\n  enable_wandb: false\n";
  const json answer = read_in(written("studio.yaml", yaml), {"--gpus", "1"});
  expect_has(answer, R"({"format": "unsloth", "plan": {"lora": 64, "quantize": "nf4",
        "grad_accum": 4, "ckpt_layers": 0}})"_json);
  EXPECT_FALSE(left_over(answer)) << answer.at("not_taken").dump();
  std::string other = yaml;
  other.replace(other.find("type: lora"), 10, "type: grpo");
  expect_error(shardwright({"import-config", written("no.yaml", other), "--cluster", "dgx-h100"}),
               3, "training.training_type is 'grpo', expected lora or full");
}

// The shape of recipes/configs/llama3_1/8B_qlora_single_device.yaml.
const std::string kTune = R"(model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'k_proj', 'output_proj']
  apply_lora_to_mlp: True
  apply_lora_to_output: False
  lora_rank: 8
  lora_alpha: 16
  lora_dropout: 0.0
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/Meta-Llama-3.1-8B-Instruct/original/tokenizer.model
  max_seq_len: 4096
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/
  checkpoint_files: [model-00001-of-00004.safetensors, model-00002-of-00004.safetensors]
  recipe_checkpoint: null
  model_type: LLAMA3
resume_from_checkpoint: False
save_adapter_weights_only: False
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
seed: null
shuffle: True
batch_size: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  weight_decay: 0.01
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
epochs: 1
max_steps_per_epoch: null
gradient_accumulation_steps: 16
compile: False # set it to True for better memory and performance
output_dir: /tmp/qlora_finetune_output/
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${output_dir}
log_every_n_steps: 1
log_peak_memory_stats: False
device: cuda
dtype: bf16
enable_activation_checkpointing: True
enable_activation_offloading: False
profiler:
  _component_: torchtune.training.setup_torch_profiler
  enabled: False
  profile_memory: False
low_cpu_ram: False
)";

TEST(FineTuningFiles, TorchtunesConfigsAreRead) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const json answer = read_in(written("qlora.yaml", kTune), {"--gpus", "1"});
  EXPECT_EQ(answer.at("format"), "torchtune");
  EXPECT_EQ(answer.at("model"), "llama-3.1-8b");
  const json& plan = answer.at("plan");
  expect_has(plan, R"({"strategy": "single", "lora": 8, "quantize": "nf4",
        "seq_len": 4096, "micro_batch": 2, "ckpt_layers": 32, "moment_dtype": "bf16",
        "loss_chunks": 8, "stack": "torch-eager"})"_json);
  EXPECT_FALSE(left_over(answer)) << answer.at("not_taken").dump();
  std::string full = kTune;
  full.replace(full.find("qlora_llama3_1_8b"), 17, "llama3_1_8b");
  const json whole =
      read_in(written("full.yaml", full + "tensor_parallel_dim: 2\n"), {"--gpus", "8"});
  EXPECT_EQ(whole.at("plan").at("tp"), 2);
  EXPECT_EQ(whole.at("plan").at("strategy"), "fsdp2");
  EXPECT_FALSE(whole.at("plan").contains("lora"));
}

TEST(FineTuningFiles, WhatTheyCannotBeToldIsRefusedOrSaid) {
  const Words on{"--model", "llama-3.1-8b", "--cluster", "dgx-h100"};
  const auto exported = [&](Words more) {
    more.insert(more.begin(), "export");
    more.insert(more.end(), on.begin(), on.end());
    return shardwright(more);
  };
  for (const char* format : {"axolotl", "llama-factory", "torchtune", "unsloth"}) {
    expect_error(exported({"--format", format, "--stack", "megatron-core", "--tp", "2"}), 3,
                 "divides data alone, expected --format torchtitan");
    EXPECT_THAT(exported({"--format", format, "--ckpt-layers", "9", "--gpus", "8"}).err,
                HasSubstr("9 of 32 layers are checkpointed"));
  }
  expect_error(shardwright({"export", "--format", "torchtune", "--model", "falcon-7b", "--cluster",
                            "dgx-h100"}),
               3, "torchtune has no builder for falcon-7b");
}

}  // namespace
}  // namespace shardwright::cli
