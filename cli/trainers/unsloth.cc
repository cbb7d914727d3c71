// SPDX-License-Identifier: Apache-2.0
// Unsloth's scripts, by what FastLanguageModel.from_pretrained, get_peft_model
// (unsloth/models/loader.py, llama.py) and SFTConfig (or TrainingArguments) are given, and the YAML
// of `unsloth train` and Unsloth Studio (unsloth_cli/config.py). Defaults of SFTConfig are those of
// the class that Unsloth makes of TRL's. A script is written.
#include <fmt/core.h>

#include <initializer_list>
#include <string>

#include "cli/trainers/fine_tuning.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kScriptRank = 16, kStudioRank = 64, kUnslothSequence = 2048;
constexpr std::int64_t kTrainerBatch = 8;  // of TrainingArguments
constexpr std::int64_t kUnslothBatch = 4, kUnslothAccumulation = 2, kStudioBatch = 2,
                       kStudioAccumulation = 4;

bool is_studio(const SettingBox& box) {
  return box.has("training.training_type") || box.has("training.max_seq_length") ||
         box.has("lora.lora_r");
}

/// "unsloth/Meta-Llama-3.1-8B-bnb-4bit" is a copy of Meta-Llama-3.1-8B in 4 bits.
std::string plain_name(std::string name, bool& in_4_bits) {
  for (const std::string_view ending : {"-unsloth-bnb-4bit", "-bnb-4bit"}) {
    if (!name.ends_with(ending)) continue;
    in_4_bits = true;
    name.resize(name.size() - ending.size());
  }
  return name;
}

struct UnslothRun {
  bool studio = false, adapters = false, in_4_bits = false;
  bool own_defaults = false;  // those of Unsloth's SFTConfig, not of TrainingArguments
};

UnslothRun take_unsloth_model(SettingBox& box, ImportedConfig& to) {
  UnslothRun run;
  run.studio = is_studio(box);
  const std::string made = run.studio ? "" : box.peek("model").value_or("");
  const auto model = run.studio ? box.take("model") : box.take("model_name model.model_name");
  if (model) {
    to.model = plain_name(*model, run.in_4_bits);
    box.took(fmt::format("model {}", to.model), to);
  }
  if (made.starts_with("FastVisionModel"))
    to.assumed.push_back("of a model that sees the text alone is predicted");
  if (run.studio) {
    const std::string type = lower_case(box.take("training.training_type").value_or("lora"));
    if (type != "lora" && type != "full") box.fail("lora or full");
    run.adapters = type == "lora";
  } else {
    run.adapters = !box.is_on("full_finetuning");
    const std::string args = box.peek("args").value_or("SFTConfig");
    run.own_defaults = args.find("TrainingArguments") == args.npos;
  }
  return run;
}

void take_unsloth_adapter(SettingBox& box, const UnslothRun& run, ImportedConfig& to) {
  const auto four = box.take_switch("training.load_in_4bit load_in_4bit");
  const bool eight = box.is_on("load_in_8bit");
  const bool fp8 = box.is_on("load_in_fp8");
  static_cast<void>(box.take("load_in_16bit"));
  if (run.adapters) {
    to.knobs.parallel.lora = run.studio ? kStudioRank : kScriptRank;
    if (!box.take_knob("lora.lora_r r", "lora", to))
      to.assumed.push_back(fmt::format("the rank of adapters is not said: {}, Unsloth's default",
                                       *to.knobs.parallel.lora));
    const bool wide = eight || fp8;
    if (run.in_4_bits || four.value_or(!wide)) {
      to.knobs.parallel.quantize = Quantize::kNf4;
      to.taken.push_back({"load_in_4bit", "true", "frozen weights in nf4"});
    } else if (wide) {
      to.knobs.parallel.quantize = eight ? Quantize::kInt8 : Quantize::kFp8;
      box.took(fmt::format("frozen weights in {}", name_of(*to.knobs.parallel.quantize)), to);
    }
  } else if (!run.studio && !box.is_on("float32_mixed_precision")) {
    to.knobs.master_dtype = to.knobs.moment_dtype = DType::kBf16;
    to.assumed.push_back("weights are trained in bf16 unless float32_mixed_precision is True");
  }
  if (lower_case(box.take("lora.use_dora use_dora").value_or("false")) == "true")
    box.fail("no such key, because steps of DoRA are not predicted");
  const std::string modules = box.take("lora.target_modules target_modules").value_or("");
  for (const char* whole : {"embed_tokens", "lm_head"}) {
    bool trained = modules.find(whole) != modules.npos;
    for (int i = 0; box.has(fmt::format("target_modules[{}]", i)); ++i)
      trained = trained || box.peek(fmt::format("target_modules[{}]", i)) == whole;
    if (trained) to.not_taken.push_back({"target_modules", whole, std::string(kTrainedWhole)});
  }
  box.take_section("target_modules");
  box.leave("modules_to_save", kTrainedWhole, to);
}

void take_unsloth_batch(SettingBox& box, const UnslothRun& run, ImportedConfig& to) {
  const bool says = box.take_knob(
      {"training.max_seq_length", "args.max_seq_length", "max_seq_length"}, "seq-len", to);
  if (!says) {
    to.knobs.seq_len = kUnslothSequence;
    to.assumed.push_back(
        fmt::format("max_seq_length is not said: {}, Unsloth's default", kUnslothSequence));
  }
  const std::int64_t batch = run.studio         ? kStudioBatch
                             : run.own_defaults ? kUnslothBatch
                                                : kTrainerBatch;
  if (!box.take_knob(
          "training.batch_size args.per_device_train_batch_size per_device_train_batch_size",
          "micro-batch", to)) {
    to.knobs.micro_batch = batch;
    to.assumed.push_back(
        fmt::format("per_device_train_batch_size is not said: {}, the default", batch));
  }
  if (!box.take_knob("training.gradient_accumulation_steps args.gradient_accumulation_steps "
                     "gradient_accumulation_steps",
                     "grad-accum", to)) {
    to.knobs.grad_accum = run.studio         ? kStudioAccumulation
                          : run.own_defaults ? kUnslothAccumulation
                                             : 1;
    to.assumed.push_back(fmt::format("gradient_accumulation_steps is not said: {}, the default",
                                     *to.knobs.grad_accum));
  }
  const bool packs =
      lower_case(box.take("training.packing args.packing packing").value_or("")) == "true";
  if (!packs)
    to.assumed.push_back(
        "without packing most sequences are shorter than max_seq_length: times and memory are of "
        "full ones");
}

void take_unsloth_checkpointing(SettingBox& box, ImportedConfig& to) {
  const bool said =
      box.has("training.gradient_checkpointing") || box.has("use_gradient_checkpointing");
  const std::string word = lower_case(
      box.take("training.gradient_checkpointing use_gradient_checkpointing").value_or("none"));
  if (!said) {
    to.knobs.ckpt_layers = CheckpointedLayers{true, 0};
    to.assumed.push_back("all layers are checkpointed, which is Unsloth's default");
  } else if (word == "true" || word == "unsloth") {
    box.set_knob("ckpt-layers", "all", to);
    if (word == "unsloth") to.not_taken.push_back({box.key(), word, std::string(kStaysOnGpu)});
  } else if (word != "false" && word != "none") {
    box.fail("unsloth, true or none");
  }
}

void take_unsloth_types(SettingBox& box, const UnslothRun& run, ImportedConfig& to) {
  const std::string type = lower_case(box.take("dtype").value_or(""));
  const auto says = [&](const char* key, const char* alone) {
    return lower_case(box.take({key, alone}).value_or("")) == "true";
  };
  const bool bf16 = says("args.bf16", "bf16"), fp16 = says("args.fp16", "fp16");
  if ((fp16 && !bf16) || (type.ends_with("float16") && !type.ends_with("bfloat16"))) {
    box.set_knob("precision", "fp16", to);
  } else if (type.ends_with("float32")) {
    to.knobs.param_dtype = DType::kFp32;
  }
  if (to.knobs.param_dtype != DType::kFp32) to.knobs.reduce_dtype = DType::kBf16;
  const char* key = box.has("args.optim") ? "args.optim" : "optim";
  if (box.has(key)) {
    take_optimizer_word(box, key, to);
  } else if (run.studio || run.own_defaults) {
    to.knobs.parallel.optimizer = Optimizer::kAdamw8bit;
    to.assumed.push_back("the optimizer is not said: adamw_8bit, Unsloth's default");
  }
}

constexpr Row kUnslothFree[] = {
    Row::free("args.gradient_checkpointing gradient_checkpointing begins_with random_state bias "
              "use_rslora loftq_config token split batched num_proc streaming remove_columns args "
              "trust_remote_code dataset_num_proc max_lora_rank fast_inference "
              "gpu_memory_utilization max_length args.max_length args.report_to report_to "
              "lora_alpha lora_dropout processing_class device_map return_tensors"),
    Row::free("num_epochs random_seed learning_rate warmup_steps max_steps save_steps output_dir "
              "train_on_completions",
              "training.")};

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

bool is_unsloth(const SettingBox& box) {
  if (box.has("base_model") || box.has("finetuning_type")) return false;
  const std::string model = box.peek("model").value_or("");
  return is_studio(box) || model.find("FastLanguageModel") != model.npos ||
         model.find("FastModel") != model.npos || model.find("FastVisionModel") != model.npos ||
         (box.has("model_name") && box.has("max_seq_length"));
}

void read_unsloth(SettingBox& box, ImportedConfig& to) {
  const UnslothRun run = take_unsloth_model(box, to);
  to.strategy = Strategy::kDdp;
  to.stack = "hf-eager";
  take_unsloth_batch(box, run, to);
  take_unsloth_adapter(box, run, to);
  take_unsloth_checkpointing(box, to);
  take_unsloth_types(box, run, to);
  to.knobs.loss_chunks = kFusedLossPieces;
  to.assumed.push_back(
      "Unsloth's kernels are not predicted, but for its loss, which holds no whole logits: it "
      "should be faster than this");
  read_rows(kUnslothFree, box, to);
  if (run.studio) {
    box.take_section("data");
    box.take_section("lora");
    box.take_section("logging");
  } else {
    for (const char* object : {"model", "train_dataset", "eval_dataset", "tokenizer"})
      box.take_section(object);
  }
}

TrainerSettings unsloth_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const Plan told = in_unsloth_words(plan, settings);
  const Told trained = follow_on_trainer(inputs, told, "Unsloth", settings);
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
      unsloth_model(inputs, as_run, trained.checkpoints), plan.seq_len, plan.micro_batch,
      plan.grad_accum, python_switch(trained.checkpoints),
      python_switch(plan.param_dtype == DType::kBf16),
      plan.numerics.optimizer == Optimizer::kAdamw8bit ? "adamw_8bit" : "adamw_torch");
  settings.body = body;
  return settings;
}

}  // namespace shardwright::cli
