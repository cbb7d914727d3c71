// SPDX-License-Identifier: Apache-2.0
// Unsloth's scripts, by what FastLanguageModel.from_pretrained, get_peft_model and SFTConfig (or
// TrainingArguments) are given, and the YAML of `unsloth train` and Unsloth Studio
// (unsloth_cli/config.py). Defaults of SFTConfig are those of the class that Unsloth makes of
// TRL's.
#include <fmt/core.h>

#include <initializer_list>

#include "cli/config/imported.h"
#include "cli/config/trainer_words.h"

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
  const auto model =
      run.studio ? box.take({"model"}) : box.take({"model_name", "model.model_name"});
  if (model) {
    to.model = plain_name(*model, run.in_4_bits);
    box.took(fmt::format("model {}", to.model), to);
  }
  if (made.starts_with("FastVisionModel"))
    to.assumed.push_back("of a model that sees the text alone is predicted");
  if (run.studio) {
    const std::string type = lower_case_word(box.take({"training.training_type"}).value_or("lora"));
    if (type != "lora" && type != "full") box.fail("lora or full");
    run.adapters = type == "lora";
  } else {
    run.adapters = !box.take_switch({"full_finetuning"}).value_or(false);
    const std::string args = box.peek("args").value_or("SFTConfig");
    run.own_defaults = args.find("TrainingArguments") == args.npos;
  }
  return run;
}

void take_unsloth_adapter(SettingBox& box, const UnslothRun& run, ImportedConfig& to) {
  const auto four = box.take_switch({"training.load_in_4bit", "load_in_4bit"});
  const bool eight = box.take_switch({"load_in_8bit"}).value_or(false);
  const bool fp8 = box.take_switch({"load_in_fp8"}).value_or(false);
  static_cast<void>(box.take({"load_in_16bit"}));
  if (run.adapters) {
    to.knobs.parallel.lora = run.studio ? kStudioRank : kScriptRank;
    if (!box.take_knob({"lora.lora_r", "r"}, "lora", to))
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
  } else if (!run.studio && !box.take_switch({"float32_mixed_precision"}).value_or(false)) {
    to.knobs.master_dtype = to.knobs.moment_dtype = DType::kBf16;
    to.assumed.push_back("weights are trained in bf16 unless float32_mixed_precision is True");
  }
  if (lower_case_word(box.take({"lora.use_dora", "use_dora"}).value_or("false")) == "true")
    box.fail("no such key, because steps of DoRA are not predicted");
  const std::string modules = box.take({"lora.target_modules", "target_modules"}).value_or("");
  for (const char* whole : {"embed_tokens", "lm_head"}) {
    bool trained = modules.find(whole) != modules.npos;
    for (int i = 0; box.has(fmt::format("target_modules[{}]", i)); ++i)
      trained = trained || box.peek(fmt::format("target_modules[{}]", i)) == whole;
    if (trained)
      to.not_taken.push_back({"target_modules", whole,
                              "modules that are trained whole beside adapters are not predicted"});
  }
  box.take_section("target_modules");
  box.leave({"modules_to_save"}, "modules that are trained whole beside adapters are not predicted",
            to);
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
  if (!box.take_knob({"training.batch_size", "args.per_device_train_batch_size",
                      "per_device_train_batch_size"},
                     "micro-batch", to)) {
    to.knobs.micro_batch = batch;
    to.assumed.push_back(
        fmt::format("per_device_train_batch_size is not said: {}, the default", batch));
  }
  if (!box.take_knob({"training.gradient_accumulation_steps", "args.gradient_accumulation_steps",
                      "gradient_accumulation_steps"},
                     "grad-accum", to)) {
    to.knobs.grad_accum = run.studio         ? kStudioAccumulation
                          : run.own_defaults ? kUnslothAccumulation
                                             : 1;
    to.assumed.push_back(fmt::format("gradient_accumulation_steps is not said: {}, the default",
                                     *to.knobs.grad_accum));
  }
  const bool packs =
      lower_case_word(box.take({"training.packing", "args.packing", "packing"}).value_or("")) ==
      "true";
  if (!packs)
    to.assumed.push_back(
        "without packing most sequences are shorter than max_seq_length: times and memory are of "
        "full ones");
}

void take_unsloth_checkpointing(SettingBox& box, ImportedConfig& to) {
  const bool said =
      box.has("training.gradient_checkpointing") || box.has("use_gradient_checkpointing");
  const std::string word = lower_case_word(
      box.take({"training.gradient_checkpointing", "use_gradient_checkpointing"}).value_or("none"));
  if (!said) {
    to.knobs.ckpt_layers = CheckpointedLayers{true, 0};
    to.assumed.push_back("all layers are checkpointed, which is Unsloth's default");
  } else if (word == "true" || word == "unsloth") {
    box.set_knob("ckpt-layers", "all", to);
    if (word == "unsloth")
      to.not_taken.push_back({box.key(), word, "what is kept stays on the GPU here"});
  } else if (word != "false" && word != "none") {
    box.fail("unsloth, true or none");
  }
}

void take_unsloth_types(SettingBox& box, const UnslothRun& run, ImportedConfig& to) {
  const std::string type = lower_case_word(box.take({"dtype"}).value_or(""));
  const auto says = [&](const char* key, const char* alone) {
    return lower_case_word(box.take({key, alone}).value_or("")) == "true";
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
  for (const char* plain : {"args.gradient_checkpointing",
                            "gradient_checkpointing",
                            "begins_with",
                            "random_state",
                            "bias",
                            "use_rslora",
                            "loftq_config",
                            "token",
                            "split",
                            "batched",
                            "num_proc",
                            "streaming",
                            "remove_columns",
                            "args",
                            "trust_remote_code",
                            "dataset_num_proc",
                            "max_lora_rank",
                            "fast_inference",
                            "gpu_memory_utilization",
                            "max_length",
                            "args.max_length",
                            "args.report_to",
                            "report_to",
                            "lora_alpha",
                            "lora_dropout",
                            "processing_class",
                            "device_map",
                            "return_tensors"}) {
    static_cast<void>(box.take({plain}));
  }
  for (const char* section : {"data", "lora", "logging"}) {
    if (run.studio) box.take_section(section);
  }
  for (const char* free : {"training.num_epochs", "training.random_seed", "training.learning_rate",
                           "training.warmup_steps", "training.max_steps", "training.save_steps",
                           "training.output_dir", "training.train_on_completions"}) {
    static_cast<void>(box.take({free}));
  }
  if (run.studio) return;
  for (const char* object : {"model", "train_dataset", "eval_dataset", "tokenizer"})
    box.take_section(object);
}

}  // namespace shardwright::cli
