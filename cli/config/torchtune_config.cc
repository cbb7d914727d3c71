// SPDX-License-Identifier: Apache-2.0
// torchtune's YAML: a component by its Python path, with its arguments beside it. Keys as its
// recipes read them (recipes/*_finetune_*.py of 0.6).
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "cli/config/imported.h"
#include "cli/config/trainer_words.h"
#include "profiles/data_dir.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kTuneRank = 8;
constexpr const char* kTuneChunks = "8";  // of its chunked losses

std::string without_marks(std::string_view name) {
  std::string letters;
  for (const char c : lower_case_word(std::string(name))) {
    if (c != '-' && c != '_' && c != '.') letters += c;
  }
  return letters;
}

/// The shipped model that a builder makes: "llama3_1_8b" is llama-3.1-8b; empty: none.
std::string model_of_builder(std::string builder) {
  constexpr std::array<std::string_view, 3> kEndings = {"_instruct", "_base", "_reasoning"};
  for (const std::string_view ending : kEndings) {
    if (builder.ends_with(ending)) builder.erase(builder.size() - ending.size());
  }
  for (const std::string& name : builtin_models(profiles::data_dir() / "models")) {
    if (without_marks(name) == without_marks(builder)) return name;
  }
  return "";
}

void take_component(SettingBox& box, ImportedConfig& to) {
  const std::string component = box.take({"model._component_"}).value_or("");
  std::string builder = component.substr(component.rfind('.') + 1);
  const bool quantized = builder.starts_with("qlora_");
  const bool adapters = quantized || builder.starts_with("lora_");
  if (adapters) builder.erase(0, builder.find('_') + 1);
  to.model = model_of_builder(builder);
  const std::string frozen = quantized ? "frozen weights in nf4" : "";
  if (!to.model.empty()) {
    box.took(fmt::format("model {}{}{}", to.model, quantized ? ", " : "", frozen), to);
  } else if (quantized) {
    box.took(frozen, to);
  }
  if (adapters) {
    to.knobs.parallel.lora = kTuneRank;
    box.take_knob({"model.lora_rank"}, "lora", to);
    const std::size_t modules = box.take_section("model.lora_attn_modules");
    const bool mlp = box.take_switch({"model.apply_lora_to_mlp"}).value_or(false);
    if (modules < 4 || !mlp)
      to.assumed.push_back("all projections have adapters in the prediction");
    box.leave({"model.apply_lora_to_output"}, "the head has no adapter in the prediction", to);
    box.leave({"model.use_dora"}, "predicted as LoRA", to);
  }
  if (quantized || box.take_switch({"model.quantize_base"}).value_or(false)) {
    to.knobs.parallel.quantize = Quantize::kNf4;
  }
  for (const char* plain : {"lora_alpha", "lora_dropout", "max_seq_len"})
    static_cast<void>(box.take({fmt::format("model.{}", plain)}));
}

void take_tune_memory(SettingBox& box, ImportedConfig& to) {
  const bool all = box.take_switch({"enable_activation_checkpointing"}).value_or(false);
  if (all) box.set_knob("ckpt-layers", "all", to);
  const std::string mode = box.take({"ac_mode"}).value_or("");
  const bool by_op = box.peek("ac_option") == "op";
  const std::int64_t every = by_op ? 0 : box.take_count({"ac_option"}).value_or(0);
  if (!all && mode == "selective") {  // its recipes apply it where the switch is off
    if (every > 0) {
      box.set_knob("ckpt-layers", "all", to);
      to.ckpt_stride = every;
      last_of(to.taken, box.file()).meaning =
          fmt::format("every {} layers are checkpointed", every);
    } else {
      box.set_knob("recompute", "selective-op", to);
    }
  }
  static_cast<void>(box.take({"ac_option"}));
  box.leave({"enable_activation_offloading"}, "what is kept stays on the GPU here", to);
  box.leave({"fsdp_cpu_offload"}, "it moves parameters and gradients to the host", to);
  box.leave({"optimizer_in_bwd"}, "gradients are kept until the optimizer runs here", to);
  const std::string loss = box.take({"loss._component_"}).value_or("");
  if (loss.find("Chunked") != loss.npos || loss.find("LinearCrossEntropy") != loss.npos)
    box.set_knob("loss-chunks", kTuneChunks, to);
}

void take_tune_mesh(SettingBox& box, ImportedConfig& to) {
  const bool reshards = box.take_switch({"fsdp_reshard_after_forward"}).value_or(true);
  to.strategy = reshards ? Strategy::kFsdp2 : Strategy::kFsdp2NoReshard;
  for (const auto& [key, knob] :
       {std::pair{"tensor_parallel_dim", "tp"}, {"context_parallel_dim", "cp"}}) {
    if (const auto ranks = box.take_count({key}); ranks.value_or(1) > 1)
      box.set_knob(knob, fmt::format("{}", *ranks), to);
  }
  if (const auto copies = box.take_count({"data_parallel_replicate_dim"}); copies.value_or(1) > 1) {
    to.replicate = *copies;
    to.strategy = Strategy::kHsdp;
    to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    box.took(copies_words(*copies), to);
  }
  if (const auto shard = box.take_count({"data_parallel_shard_dim"}, -1);
      shard.value_or(-1) != -1) {
    to.shard = std::max<std::int64_t>(1, *shard);
    box.took(fmt::format("sharded over {} ranks", *to.shard), to);
  }
}

void take_tune_dtype(SettingBox& box, ImportedConfig& to) {
  const std::string dtype = box.take({"dtype"}).value_or("bf16");
  if (dtype == "bf16") {
    // Weights, gradients and moments follow the dtype that the model is loaded in.
    to.knobs.reduce_dtype = to.knobs.master_dtype = to.knobs.moment_dtype = DType::kBf16;
    box.took("weights, gradients and moments in bf16", to);
  } else if (dtype == "fp32") {
    to.knobs.param_dtype = DType::kFp32;
    box.took("everything in fp32", to);
  } else {
    box.fail("bf16 or fp32");
  }
  if (box.take_switch({"enable_fp8_training"}).value_or(false))
    box.set_knob("precision", "fp8", to);
}

/// What makes another training of it, or none: refused, because a prediction would be of something
/// else.
void refuse_other_recipes(SettingBox& box) {
  const auto loss = box.take({"loss._component_"});
  if (loss && loss->find("CrossEntropy") == loss->npos && loss->find("CEWith") == loss->npos)
    box.fail(
        "a cross entropy, because steps of preference training and distillation are not "
        "predicted");
  for (const char* other : {"teacher_model._component_", "policy_model._component_"}) {
    if (box.take({other})) box.fail("no such key, because steps of two models are not predicted");
  }
  if (!box.has("optimizer")) {
    throw Error(
        fmt::format("{}: optimizer is missing, expected the settings of a training", box.file()));
  }
}

}  // namespace

bool is_torchtune(const SettingBox& box) {
  return box.peek("model._component_").value_or("").starts_with("torchtune.");
}

void read_torchtune(SettingBox& box, ImportedConfig& to) {
  refuse_other_recipes(box);
  take_component(box, to);
  if (!box.take_knob({"tokenizer.max_seq_len"}, "seq-len", to)) {
    to.assumed.push_back(
        "tokenizer.max_seq_len is not said: sequences are as long as the data; give "
        "--seq-len");
  }
  if (!box.take_knob({"batch_size"}, "micro-batch", to))
    to.assumed.push_back("batch_size is not said: 1");
  box.take_knob({"gradient_accumulation_steps"}, "grad-accum", to);
  if (!box.take_switch({"dataset.packed"}).value_or(false)) {
    to.assumed.push_back(
        "without dataset.packed most sequences are shorter than max_seq_len: times "
        "and memory are of full ones");
  }
  take_tune_mesh(box, to);
  take_tune_memory(box, to);
  take_optimizer_word(box, "optimizer._component_", to);
  static_cast<void>(box.take({"optimizer.fused", "optimizer.foreach"}));
  take_tune_dtype(box, to);
  const bool compiles = box.take_switch({"compile"}).value_or(false);
  to.stack = compiles ? "torch-compile" : "torch-eager";
  box.took(fmt::format("framework {}", to.stack), to);
  for (const char* section :
       {"tokenizer", "checkpointer", "dataset", "metric_logger", "profiler", "lr_scheduler",
        "compile", "clip_grad_norm", "cudnn_deterministic_mode"}) {
    box.take_section(section);
  }
  for (const char* plain :
       {"device", "shuffle", "seed", "resume_from_checkpoint", "low_cpu_ram",
        "memory_efficient_fsdp_wrap", "save_adapter_weights_only", "output_dir",
        "custom_sharded_layers", "use_output_dir_path", "enable_async_checkpointing"}) {
    static_cast<void>(box.take({plain}));
  }
}

}  // namespace shardwright::cli
