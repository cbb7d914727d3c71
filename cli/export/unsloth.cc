// SPDX-License-Identifier: Apache-2.0
// A script for Unsloth. Names of arguments from FastLanguageModel.from_pretrained and
// get_peft_model (unsloth/models/loader.py, llama.py) and from the SFTConfig that it makes of
// TRL's.
#include <fmt/core.h>

#include <string>

#include "cli/config/trainer_words.h"
#include "cli/export/settings.h"
#include "cli/export/trainer_yaml.h"

namespace shardwright::cli {
namespace {

const char* python_switch(bool on) {
  return on ? "True" : "False";
}

PythonSource unsloth_model(const sim::Job& inputs, const Plan& as_run, bool checkpoints) {
  const Numerics& numerics = as_run.numerics;
  PythonSource text = PythonSource::format(
      "model, tokenizer = FastLanguageModel.from_pretrained(\n"
      "    model_name={},\n"
      "    max_seq_length={},\n"
      "    load_in_4bit={},\n"
      "    load_in_8bit={},\n",
      string_literal(inputs.model_name), as_run.seq_len,
      python_switch(numerics.quantize == Quantize::kNf4),
      python_switch(numerics.quantize == Quantize::kInt8));
  if (numerics.quantize == Quantize::kFp8) text += "    load_in_fp8=True,\n";
  if (as_run.param_dtype == DType::kFp32) text += "    dtype=torch.float32,\n";
  const PythonSource checkpointing =
      PythonSource::format("    use_gradient_checkpointing={},\n)\n", python_switch(checkpoints));
  if (numerics.lora == 0) {
    text += "    full_finetuning=True,\n";
    if (as_run.param_dtype == DType::kBf16)
      text += PythonSource::format("    float32_mixed_precision={},\n",
                                   python_switch(as_run.master_dtype == DType::kFp32));
    return text + checkpointing;
  }
  return text + PythonSource::format(
                    ")\n"
                    "model = FastLanguageModel.get_peft_model(\n"
                    "    model,\n"
                    "    r={},\n"
                    "    lora_alpha={},\n"
                    "    lora_dropout=0,\n"
                    "    bias=\"none\",\n"
                    "{}",
                    numerics.lora, 2 * numerics.lora, checkpointing);
}

/// It has a copy of the model on each GPU, kernels of its own and a loss that holds no whole
/// logits.
Plan in_unsloth_words(const Plan& plan, TrainerSettings& settings) {
  Plan told = plan;
  if (plan.gpus > 1 && info_of(plan.strategy).software != Software::kDdp) {
    told.strategy = Strategy::kDdp;
    told.shard_group = 0;
    settings.lost("strategy", fmt::format("{}; Unsloth keeps the whole model on each GPU, so ddp",
                                          name_of(plan.strategy)));
  }
  if (plan.attention == AttentionKind::kEager) {
    told.attention = AttentionKind::kFlash;
    settings.lost("attention", "eager; Unsloth calls a fused attention");
  }
  const DType states =
      plan.master_dtype == DType::kBf16 && plan.numerics.lora == 0 ? DType::kBf16 : DType::kFp32;
  if (plan.param_dtype == DType::kBf16 &&
      (plan.master_dtype != states || plan.moment_dtype != states)) {
    settings.lost("moment_dtype",
                  fmt::format("master weights and moments are both in {}", name_of(states)));
    told.master_dtype = told.moment_dtype = states;
  }
  if (plan.loss_chunks != kFusedLossPieces)
    settings.said("loss_chunks",
                  fmt::format("Unsloth's loss holds no whole logits: predicted in {} pieces",
                              kFusedLossPieces));
  told.loss_chunks = 0;
  return told;
}

}  // namespace

TrainerSettings unsloth_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const Plan told = in_unsloth_words(plan, settings);
  const TrainerRun run = follow_on_trainer(inputs, told, "Unsloth", settings);
  Plan& as_run = settings.as_run;
  as_run.loss_chunks = kFusedLossPieces;
  settings.said("stack", "Unsloth's kernels are not predicted: it should be faster than this");
  PythonSource body = "import os\n\n";
  if (as_run.param_dtype == DType::kFp32) body = "import os\n\nimport torch\n";
  body += PythonSource::format(
      "from unsloth import FastLanguageModel  # before trl, which it changes\n"
      "from trl import SFTConfig, SFTTrainer\n\n"
      "{}"
      "args = SFTConfig(\n"
      "    max_seq_length={},\n"
      "    packing=True,\n"
      "    per_device_train_batch_size={},\n"
      "    gradient_accumulation_steps={},\n"
      "    gradient_checkpointing={},\n"
      "    bf16={},\n"
      "    optim=\"{}\",\n"
      "    output_dir=os.environ.get(\"CHECKPOINT_DIR\", \"outputs\"),\n"
      "    save_steps=int(os.environ.get(\"CHECKPOINT_STEPS\", \"500\")),\n"
      ")\n\n\n"
      "def train(dataset, resume=False):\n"
      "    trainer = SFTTrainer(\n"
      "        model=model, processing_class=tokenizer, train_dataset=dataset, args=args\n"
      "    )\n"
      "    trainer.train(resume_from_checkpoint=resume)\n",
      unsloth_model(inputs, as_run, run.checkpoints), plan.seq_len, plan.micro_batch,
      plan.grad_accum, python_switch(run.checkpoints),
      python_switch(plan.param_dtype == DType::kBf16),
      plan.numerics.optimizer == Optimizer::kAdamw8bit ? "adamw_8bit" : "adamw_torch");
  settings.body = body;
  return settings;
}

}  // namespace shardwright::cli
