// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's arguments (a launch script) and Megatron-Bridge's configuration (YAML, overrides, a
// recipe in Python), which have the same names in other sections; written are bash arrays for
// pretrain_gpt.py, and a Python function that changes the ConfigContainer of a recipe.
//
// Names: arguments of Megatron-LM's megatron/training/arguments.py; fields of megatron-core 0.16
// (model_parallel_config.py, transformer/transformer_config.py,
// distributed/distributed_data_parallel_config.py, optimizer/optimizer_config.py), in which
// scripts/check_exports looks each of them up, and of Megatron-Bridge's docs and 0.3
// (training/config.py).
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/config/imported.h"
#include "cli/export/settings.h"
#include "profiles/ledger/ledger.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"
#include "sim/program/low_precision.h"

namespace shardwright::cli {
namespace {

/// "tensor_model_parallel_size" where Megatron-LM has it, and in the sections of Megatron-Bridge.
class MegatronKeys {
 public:
  explicit MegatronKeys(std::string_view name) {
    for (std::size_t i = 0; i < kSections.size(); ++i)
      all_[i] = std::string(kSections[i]) + std::string(name);
  }
  std::optional<std::string> take(SettingBox& box) const {
    for (const std::string& key : all_) {
      if (auto value = box.take(key)) return value;
    }
    return std::nullopt;
  }
  std::optional<std::int64_t> count(SettingBox& box, std::int64_t least = 1) const {
    for (const std::string& key : all_) {
      if (const auto value = box.take_count({key}, least)) return value;
    }
    return std::nullopt;
  }
  bool on(SettingBox& box) const {
    for (const std::string& key : all_) {
      if (const auto value = box.take_switch(key)) return *value;
    }
    return false;
  }
  bool knob(SettingBox& box, std::string_view knob, ImportedConfig& to) const {
    for (const std::string& key : all_) {
      if (box.take_knob({key}, knob, to)) return true;
    }
    return false;
  }

 private:
  static constexpr std::array<std::string_view, 9> kSections = {
      "",           "model.",        "train.",           "ddp.",           "dataset.",
      "optimizer.", "comm_overlap.", "mixed_precision.", "model_parallel."};
  std::array<std::string, 9> all_;
};

/// fp16 is reduced in 16 bits unless another setting says otherwise.
void take_half(SettingBox& box, ImportedConfig& to) {
  box.set_knob("precision", "fp16", to);
  to.knobs.reduce_dtype = DType::kBf16;
}

/// "bf16_with_mxfp8_mixed", "get_mixed_precision_config(...)", "bf16_mixed() -> ...".
void take_precision_recipe(SettingBox& box, ImportedConfig& to) {
  const auto recipe = box.take("mixed_precision");
  if (!recipe) return;
  if (recipe->find("nvfp4") != recipe->npos) {
    box.set_knob("precision", "nvfp4", to);
  } else if (recipe->find("fp8") != recipe->npos) {
    box.set_knob("precision", "fp8", to);
    std::string word = "delayed";
    for (const auto& [part, name] :
         {std::pair{"current", "tensorwise"}, {"subchannel", "block"}, {"mxfp8", "mxfp8"}}) {
      if (recipe->find(part) != recipe->npos) word = name;
    }
    box.set_knob("fp8-recipe", word, to);
  } else if (recipe->find("fp16") != recipe->npos) {
    take_half(box, to);
  } else if (recipe->find("bf16") != recipe->npos) {
    box.took("bf16", to);
  } else if (recipe->find("MixedPrecisionConfig") == recipe->npos) {
    box.fail("a precision recipe of Megatron-Bridge such as bf16_mixed");
  }
}

void take_megatron_optimizer(SettingBox& box, ImportedConfig& to) {
  auto name = box.take("optimizer.optimizer");
  if (!name) name = MegatronKeys("optimizer").take(box);
  if (!name || name->find("OptimizerConfig") != name->npos) return;
  if (name->find("muon") != name->npos) {
    box.set_knob("optimizer", "muon", to);
  } else if (*name == "adam" || name->find("fused_adam") != name->npos) {
    box.took("optimizer adamw", to);
  } else {
    box.set_knob("optimizer", *name, to);
  }
}

/// Of the precision-aware optimizer.
void take_state_types(SettingBox& box, ImportedConfig& to) {
  const auto narrower = [&](const char* name) -> std::optional<std::string> {
    const auto type = MegatronKeys(name).take(box);
    if (!type || type->find("32") != type->npos) return std::nullopt;
    return type;
  };
  const auto first = narrower("exp_avg_dtype"), second = narrower("exp_avg_sq_dtype");
  if (first && second && first->find("bf") != first->npos) {
    box.set_knob("moment-dtype", "bf16", to);
  } else if (first || second) {
    to.not_taken.push_back({first ? "exp_avg_dtype" : "exp_avg_sq_dtype",
                            first.value_or(second.value_or("")), "moments are predicted in fp32"});
  }
  for (const char* name : {"main_params_dtype", "megatron_fsdp_main_params_dtype"}) {
    if (const auto type = narrower(name))
      to.not_taken.push_back({box.key(), *type, "master weights are predicted in fp32"});
  }
  for (const char* name : {"main_grads_dtype", "megatron_fsdp_main_grads_dtype"}) {
    if (const auto type = narrower(name))
      to.not_taken.push_back({box.key(), *type, "gradients are predicted as they are reduced"});
  }
}

void take_megatron_numbers(SettingBox& box, ImportedConfig& to) {
  take_precision_recipe(box, to);
  const bool bf16 = MegatronKeys("bf16").on(box);
  const bool fp16 = MegatronKeys("fp16").on(box);
  if (fp16) take_half(box, to);
  if (const auto format = MegatronKeys("fp8_format").take(box) ? std::optional(box.value())
                                                               : MegatronKeys("fp8").take(box);
      format && *format != "false") {
    box.set_knob("precision", "fp8", to);
  }
  const auto recipe = MegatronKeys("fp8_recipe").take(box);
  if (recipe && to.knobs.parallel.precision)
    box.set_knob("fp8-recipe", *recipe == "blockwise" ? "block" : *recipe, to);
  if (MegatronKeys("fp4").take(box) || MegatronKeys("fp4_format").take(box))
    box.set_knob("precision", "nvfp4", to);
  if (MegatronKeys("fp8_param_gather").on(box) || MegatronKeys("fp8_param").on(box))
    box.set_knob("fp8-params", "on", to);
  take_megatron_optimizer(box, to);
  take_state_types(box, to);
  if (MegatronKeys("grad_reduce_in_bf16").on(box)) box.set_knob("reduce-dtype", "bf16", to);
  if (MegatronKeys("accumulate_allreduce_grads_in_fp32").on(box))
    box.set_knob("reduce-dtype", "fp32", to);
  // A precision recipe of Megatron-Bridge overrides what the section of DDP says.
  const auto reduces = box.take_switch("mixed_precision.grad_reduce_in_fp32");
  const auto ddp = box.take_switch("ddp.grad_reduce_in_fp32");
  if (reduces) box.set_knob("reduce-dtype", *reduces ? "fp32" : "bf16", to);
  if (!reduces && ddp && !*ddp && !box.has("mixed_precision"))
    box.set_knob("reduce-dtype", "bf16", to);
  if (MegatronKeys("optimizer_cpu_offload").on(box)) box.set_knob("offload", "optimizer", to);
  const auto offloaded = MegatronKeys("optimizer_offload_fraction").take(box);
  if (offloaded && parse_double(*offloaded) != 1.0)
    to.not_taken.push_back(
        {box.key(), *offloaded, "the whole state is predicted in the host's memory"});
  // What Megatron-LM's arguments leave to its defaults; a recipe has them elsewhere.
  if (!box.peek("tensor_model_parallel_size") && !box.peek("micro_batch_size")) return;
  if (!bf16 && !fp16 && !to.knobs.parallel.precision) {
    to.knobs.param_dtype = to.knobs.reduce_dtype = DType::kFp32;
    to.assumed.push_back(
        "neither bf16 nor fp16 is given: fp32, Megatron's default (--param-dtype)");
  }
  if (to.knobs.parallel.precision == Precision::kFp8 && !recipe) {
    to.knobs.parallel.fp8_recipe = Fp8Recipe::kDelayed;
    to.assumed.push_back("fp8_recipe is not said: delayed, Megatron's default");
  }
}

bool begins_with(const SettingBox& box, std::string_view function) {
  const auto base = box.peek("begins_with");
  return base && base->ends_with(function);
}

/// A text, or a list of what each stage holds: [["embedding", "decoder"], ["decoder", "loss"]].
void take_layout(SettingBox& box, ImportedConfig& to) {
  if (const auto layout = MegatronKeys("pipeline_model_parallel_layout").take(box))
    return box.set_knob("pp-layout", *layout, to);
  const std::string key = "model.pipeline_model_parallel_layout";
  std::string text;
  for (int stage = 0;; ++stage) {
    const std::vector<std::string> modules = box.take_list(fmt::format("{}[{}]", key, stage));
    if (modules.empty()) break;
    if (stage > 0) text += '|';
    for (const std::string& module : modules) {
      if (module != "embedding" && module != "decoder" && module != "mtp" && module != "loss")
        box.fail("embedding, decoder, mtp or loss");
      text += module == "embedding" ? 'E' : module == "decoder" ? 't' : module == "mtp" ? 'm' : 'L';
    }
  }
  if (!text.empty()) box.set_knob("pp-layout", text, to);
}

void take_degrees(SettingBox& box, ImportedConfig& to) {
  for (const auto& [name, knob] : {std::pair{"tensor_model_parallel_size", "tp"},
                                   {"pipeline_model_parallel_size", "pp"},
                                   {"context_parallel_size", "cp"},
                                   {"expert_model_parallel_size", "ep"},
                                   {"expert_tensor_parallel_size", "etp"},
                                   {"virtual_pipeline_model_parallel_size", "virtual-stages"},
                                   {"num_virtual_stages_per_pipeline_rank", "virtual-stages"}}) {
    if (const auto ranks = MegatronKeys(name).count(box); ranks.value_or(1) > 1)
      box.set_knob(knob, fmt::format("{}", *ranks), to);
  }
  take_layout(box, to);
  const bool sequence = MegatronKeys("sequence_parallel").on(box);
  if (to.knobs.parallel.tp.value_or(1) > 1) {
    to.knobs.parallel.sp = sequence;
    if (sequence) box.took("sp on", to);
  }
  // Without tensor parallelism it is turned off.
  if (MegatronKeys("tp_comm_overlap").on(box) && to.knobs.parallel.tp.value_or(1) > 1)
    box.set_knob("tp-overlap", "userbuffers", to);
  if (const auto type = MegatronKeys("cp_comm_type").take(box)) {
    const std::string word = *type == "p2p" ? "ring" : *type == "all_gather" ? "all-gather" : *type;
    box.set_knob("cp-comm", word, to);
  }
  if (const auto type = MegatronKeys("moe_token_dispatcher_type").take(box)) {
    const std::string backend =
        MegatronKeys("moe_flex_dispatcher_backend").take(box).value_or("deepep");
    box.set_knob("dispatcher", *type == "flex" ? backend : *type, to);
  }
  if (!to.knobs.parallel.dispatcher && box.peek("expert_model_parallel_size") &&
      to.knobs.parallel.ep.value_or(1) > 1) {
    to.knobs.parallel.dispatcher = Dispatcher::kAllGather;
    to.assumed.push_back("moe_token_dispatcher_type is not said: allgather, Megatron's default");
  }
  if (MegatronKeys("overlap_moe_expert_parallel_comm").on(box)) {
    box.set_knob("ep-overlap", "on", to);
    static_cast<void>(MegatronKeys("delay_wgrad_compute").take(box));
  }
  MegatronKeys("moe_expert_capacity_factor").knob(box, "expert-capacity", to);
  if (MegatronKeys("moe_router_force_load_balancing").on(box))
    box.set_knob("expert-load", "balanced", to);
}

void take_layers_per_chunk(SettingBox& box, std::int64_t layers, ImportedConfig& to) {
  const auto per_chunk = MegatronKeys("num_layers_per_virtual_pipeline_stage").count(box);
  const std::int64_t stages = to.knobs.parallel.pp.value_or(1);
  if (!per_chunk || stages == 1) return;
  if (layers <= 0 || layers % (stages * *per_chunk) != 0) {
    to.not_taken.push_back({"num_layers_per_virtual_pipeline_stage", fmt::format("{}", *per_chunk),
                            "num_layers is no multiple of it and the stages, or is not said: give "
                            "--virtual-stages"});
    return;
  }
  box.set_knob("virtual-stages", fmt::format("{}", layers / (stages * *per_chunk)), to);
}

void take_recomputation(SettingBox& box, ImportedConfig& to) {
  const auto granularity = MegatronKeys("recompute_granularity").take(box);
  const bool given = granularity.has_value();
  const auto method = MegatronKeys("recompute_method").take(box);
  const std::string how = method.value_or("uniform");
  const auto count = MegatronKeys("recompute_num_layers").count(box);
  if (!given) {
    if (MegatronKeys("recompute_activations").on(box)) box.set_knob("recompute", "core_attn", to);
    return;
  }
  if (*granularity == "full") {
    if (how == "block" && count) {
      const std::int64_t chunks =
          to.knobs.parallel.pp.value_or(1) * to.knobs.parallel.virtual_stages.value_or(1);
      box.set_knob("ckpt-layers", fmt::format("{}", *count * chunks), to);
      return;
    }
    box.set_knob("ckpt-layers", "all", to);
    if (count.value_or(1) > 1) {
      to.not_taken.push_back({"recompute_num_layers", fmt::format("{}", *count),
                              "groups of layers are predicted as single ones"});
    }
    return;
  }
  std::string modules;
  if (const auto list = MegatronKeys("recompute_modules").take(box)) modules = *list;
  for (int i = 0; i < 16; ++i) {
    const auto module = MegatronKeys(fmt::format("recompute_modules[{}]", i)).take(box);
    if (!module) break;
    modules += (modules.empty() ? "" : " ") + *module;
  }
  if (modules.empty()) modules = "core_attn";
  std::erase_if(modules, [](char c) { return c == '[' || c == ']' || c == '"' || c == '\''; });
  std::replace(modules.begin(), modules.end(), ' ', ',');
  for (const auto& [theirs, ours] :
       {std::pair<std::string, std::string>{"layernorm", "norm"}, {"mlp", "ffn"}}) {
    const std::size_t at = modules.find(theirs);
    if (at != modules.npos) modules.replace(at, theirs.size(), ours);
  }
  box.set_knob("recompute", modules, to);
}

void take_sharding_strategy(SettingBox& box, ImportedConfig& to) {
  const bool fsdp =
      MegatronKeys("use_megatron_fsdp").on(box) || MegatronKeys("use_custom_fsdp").on(box);
  // Megatron-Bridge turns it on everywhere where one section says so.
  bool distributed = begins_with(box, "_common");
  for (const char* section : {"", "ddp.", "optimizer."}) {
    const auto on = box.take_switch(fmt::format("{}use_distributed_optimizer", section));
    distributed = on ? *on || (distributed && *section != 0) : distributed;
  }
  to.strategy = distributed ? Strategy::kDistributedOptimizer : Strategy::kDdp;
  const auto shards = MegatronKeys("data_parallel_sharding_strategy").take(box);
  if (fsdp) {
    const std::string word = shards.value_or(box.has("ddp") ? "optim_grads_params" : "no_shard");
    constexpr std::array<std::pair<std::string_view, Strategy>, 4> kWords = {
        {{"no_shard", Strategy::kDdp},
         {"optim", Strategy::kDistributedOptimizer},
         {"optim_grads", Strategy::kZero2},
         {"optim_grads_params", Strategy::kMegatronFsdp}}};
    const auto* const known = std::find_if(kWords.begin(), kWords.end(),
                                           [&](const auto& one) { return one.first == word; });
    if (known == kWords.end()) box.fail("no_shard, optim, optim_grads or optim_grads_params");
    to.strategy = known->second;
  }
  if (to.strategy == Strategy::kDdp) {
    to.assumed.push_back(
        fsdp ? "Megatron-FSDP shards nothing without data_parallel_sharding_strategy: predicted as "
               "ddp"
             : "no use_distributed_optimizer: every rank keeps the whole optimizer state");
  } else {
    box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  }
}

/// Reductions and gathers beside the passes: off unless said. Megatron-Bridge's comm_overlap turns
/// both on for a distributed optimizer; a recipe whose base is not at hand has that one's.
void take_overlap(SettingBox& box, ImportedConfig& to) {
  const bool by_config = box.peek("comm_overlap").value_or("").starts_with("CommOverlapConfig");
  const bool base_says = !box.has("ddp") && (box.has("train") || box.has("begins_with")) &&
                         !begins_with(box, "_sft_common") && !begins_with(box, "_peft_common");
  for (const char* name : {"overlap_grad_reduce", "overlap_param_gather"}) {
    auto on = box.take_switch(fmt::format("comm_overlap.{}", name));
    const auto by_section = box.take_switch(fmt::format("ddp.{}", name));
    const auto by_flag = box.take_switch(name);
    if (!on && by_config) on = true;
    if (!on) on = by_section ? by_section : by_flag;
    if (on ? *on : base_says) continue;  // as the framework has it
    // DDP gathers nothing.
    if (to.strategy == Strategy::kDdp && std::string_view(name) == "overlap_param_gather") continue;
    to.overrides.push_back(fmt::format("stack.parallel.{}=false", name));
    if (!on) to.assumed.push_back(fmt::format("{} is not said: off", name));
  }
}

/// Megatron-Bridge's PEFT: "LoRA()" with dim below it, default_peft_config("lora"), or "lora".
void take_adapters(SettingBox& box, ImportedConfig& to) {
  const bool said = box.has("peft");
  const auto scheme = box.take("peft");
  const auto by_name = box.take("peft_scheme");
  std::string word = lower_case(scheme.value_or(by_name.value_or("")));
  if (!said && word.empty() && begins_with(box, "_peft_common")) word = "lora";
  const auto dim = box.take_count("peft.dim");
  if (word.empty() && !dim) return;
  if (word.find("lora") == word.npos && word.find("dora") == word.npos && !dim)
    box.fail("LoRA, DoRA or none");
  to.knobs.parallel.lora = dim.value_or(32);
  to.taken.push_back({"peft", scheme.value_or(word), fmt::format("lora {}", dim.value_or(32))});
  if (word.find("dora") != word.npos) {
    to.not_taken.push_back({"peft", *scheme, "the magnitudes of DoRA cost more than is predicted"});
  }
  if (box.take_section("peft.target_modules") > 0)
    to.assumed.push_back("all projections have adapters of LoRA in the prediction");
}

/// What the recipes of Megatron-Bridge begin with (recipes/common.py of 0.3.1 and 067f987), where
/// that file is not beside the recipe.
void assume_common(SettingBox& box, ImportedConfig& to) {
  const bool pretrains = begins_with(box, "_pretrain_common");
  if (!pretrains && !begins_with(box, "_sft_common") && !begins_with(box, "_peft_common")) return;
  if (!to.knobs.micro_batch) to.knobs.micro_batch = pretrains ? 2 : 1;
  if (!to.global_batch) to.global_batch = pretrains ? 32 : 128;
  if (!to.knobs.seq_len) to.knobs.seq_len = pretrains ? 4096 : 2048;
  const std::string base = box.take("begins_with").value_or("");
  to.assumed.push_back(fmt::format(
      "it begins with {}: what it does not say is that one's, a micro-batch of {}, a global batch "
      "of {}, sequences of {} and a distributed optimizer",
      base.substr(base.rfind('.') + 1), pretrains ? 2 : 1, pretrains ? 32 : 128,
      pretrains ? 4096 : 2048));
}

/// "AutoBridge.from_hf_pretrained(meta-llama/Llama-3.2-1B).get_model_config()": its argument.
void take_pretrained(SettingBox& box, ImportedConfig& to) {
  const auto call = box.take("model");
  const std::size_t open = call ? call->find("from_hf_") : std::string::npos;
  if (open == std::string::npos) return;
  const std::size_t begin = call->find('(', open), end = call->find(')', open);
  if (begin == call->npos || end == call->npos || end <= begin + 1) return;
  to.model = call->substr(begin + 1, end - begin - 1);
  box.took("model " + to.model, to);
}

void take_sizes(SettingBox& box, ImportedConfig& to) {
  take_pretrained(box, to);
  const auto layers = MegatronKeys("num_layers").count(box);
  const auto hidden = MegatronKeys("hidden_size").count(box);
  const auto ffn = MegatronKeys("ffn_hidden_size").count(box);
  take_layers_per_chunk(box, layers.value_or(0), to);
  if (layers && hidden) {
    to.model = model_with(*layers, *hidden, ffn);
    to.taken.push_back({"num_layers", fmt::format("{}", *layers),
                        to.model.empty() ? "no single shipped model of these sizes: give --model"
                                         : fmt::format("model {}, by its sizes", to.model)});
  }
  for (const std::string_view size :
       Keys("num_attention_heads num_query_groups group_query_attention kv_channels "
            "max_position_embeddings swiglu normalization position_embedding_type rotary_base "
            "rotary_percent num_experts moe_router_topk moe_ffn_hidden_size vocab_size "
            "disable_bias_linear untie_embeddings_and_output_weights attention_dropout "
            "hidden_dropout use_rotary_position_embeddings init_method_std "
            "make_vocab_size_divisible_by moe_grouped_gemm use_flash_attn norm_epsilon "
            "moe_router_load_balancing_type moe_aux_loss_coeff transformer_impl cuda_graph_scope "
            "cuda_graph_warmup_steps attention_backend cross_entropy_loss_fusion "
            "cross_entropy_fusion_impl moe_permute_fusion apply_rope_fusion "
            "gradient_accumulation_fusion bias_activation_fusion bias_dropout_fusion "
            "masked_softmax_fusion rotary_emb_fraction overlap_param_gather_with_optimizer_step "
            "use_precision_aware_optimizer overlap_cpu_optimizer_d2h_h2d ckpt_format "
            "qk_layernorm ddp optimizer train model no_masked_softmax_fusion use_mcore_models "
            "no_position_embedding"))
    static_cast<void>(MegatronKeys(size).take(box));
}

/// "llama3_8b_peft_1gpu_h100_bf16_config" says 1; 0 where it says none.
std::int64_t gpus_in_name(const std::string& file) {
  const std::size_t colon = file.rfind(".py:");
  const std::size_t end = colon == file.npos ? colon : file.find("gpu_", colon);
  if (end == file.npos) return 0;
  const std::size_t begin = file.find_last_not_of("0123456789", end - 1) + 1;
  return parse_int64(file.substr(begin, end - begin)).value_or(0);
}

/// A plan as an option: the argument that Megatron-LM takes on its command line, and the field of
/// Megatron-Bridge's ConfigContainer that says the same.
struct MegatronOption {
  std::string_view group;  // heading: "parallelism"
  std::string argument;    // "--tensor-model-parallel-size"; empty: Bridge alone has it
  ShellSource value;       // empty: a switch
  std::string field;       // "model.tensor_model_parallel_size"; empty: Megatron-LM alone has it
  PythonSource python;     // its value
};
using MegatronOptions = std::vector<MegatronOption>;

/// Collects options under the heading of the moment.
class Options {
 public:
  void group(const char* name) { group_ = name; }
  /// An argument, or a field of Megatron-Bridge whose argument is called alike.
  template <typename Number>
  void value(const char* name, Number number) {
    alike(name, ShellSource::format("{}", number), PythonSource::format("{}", number));
  }
  void word(const char* name, std::string_view word) {
    alike(name, shell_word(word), string_literal(word));
  }
  void on(const char* name) { alike(name, "", "True"); }
  void alike(std::string name, ShellSource value, PythonSource python) {
    if (name.starts_with("--")) return add(std::move(name), std::move(value), "", "");
    std::string argument = "--" + name.substr(name.find('.') + 1);
    std::replace(argument.begin(), argument.end(), '_', '-');
    add(std::move(argument), std::move(value), std::move(name), std::move(python));
  }
  void add(std::string argument, ShellSource value, std::string field, PythonSource python) {
    options_.push_back(
        {group_, std::move(argument), std::move(value), std::move(field), std::move(python)});
  }
  MegatronOptions take() && { return std::move(options_); }

 private:
  const char* group_ = "";
  MegatronOptions options_;
};

[[noreturn]] void not_in_megatron(std::string_view knob, std::string_view value,
                                  std::string_view expected) {
  throw Error(
      fmt::format("{} is {}, which Megatron does not have, expected {}", knob, value, expected));
}

void add_attention(const Model& model, Options& out) {
  if (model.latent.kv_rank > 0) {
    const LatentAttention& latent = model.latent;
    out.on("--multi-latent-attention");
    if (latent.q_rank > 0) out.value("--q-lora-rank", latent.q_rank);
    out.value("--kv-lora-rank", latent.kv_rank);
    out.value("--qk-head-dim", latent.nope_dim);
    out.value("--qk-pos-emb-head-dim", latent.rope_dim);
    out.value("--v-head-dim", latent.v_dim);
    return;
  }
  if (model.kv_heads != model.heads) {
    out.on("--group-query-attention");
    out.value("--num-query-groups", model.kv_heads);
  }
  if (model.head_dim * model.heads != model.hidden) out.value("--kv-channels", model.head_dim);
  if (model.qk_norm || model.qk_norm_whole) out.on("--qk-layernorm");
}

void add_experts(const Model& model, Options& out) {
  const Experts& e = model.experts;
  out.value("--num-experts", e.count);
  out.value("--moe-ffn-hidden-size", e.ffn);
  out.value("--moe-router-topk", e.per_token);
  if (e.shared_ffn > 0) out.value("--moe-shared-expert-intermediate-size", e.shared_ffn);
  if (e.groups > 1) {
    out.value("--moe-router-num-groups", e.groups);
    out.value("--moe-router-group-topk", e.groups_per_token);
  }
  if (e.first_layer > 0 || e.every > 1) {
    std::string layers;
    for (std::int64_t i = 0; i < model.layers; ++i)
      layers += fmt::format("{}{}", i == 0 ? "" : ",", model.has_experts(i) ? 1 : 0);
    out.word("--moe-layer-freq", "[" + layers + "]");
  }
  out.on("--moe-grouped-gemm");
}

/// The nearest of Megatron's strategies.
Strategy megatron_strategy(Strategy strategy) {
  const StrategyInfo& info = info_of(strategy);
  if (info.bucketed || info.shards == Sharded::kNothing) return strategy;
  return info.shards == Sharded::kParameters ? Strategy::kMegatronFsdp
                                             : Strategy::kDistributedOptimizer;
}

void add_data_parallelism(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings,
                          Options& out) {
  const Strategy strategy = megatron_strategy(plan.strategy);
  if (strategy != plan.strategy) {
    settings.lost("strategy", fmt::format("Megatron has no {}; the settings run {}",
                                          name_of(plan.strategy), name_of(strategy)));
    settings.as_run.strategy = strategy;
  }
  const ParallelSoftware& software = inputs.profile.stack.parallel;
  const bool fsdp = strategy == Strategy::kMegatronFsdp;
  if (fsdp) {
    out.on("ddp.use_megatron_fsdp");
    out.word("ddp.data_parallel_sharding_strategy", "optim_grads_params");
    out.word("checkpoint.ckpt_format", "fsdp_dtensor");  // it takes no other
  }
  if (fsdp || strategy == Strategy::kDistributedOptimizer) {
    out.on("ddp.use_distributed_optimizer");
  }
  if (plan.shard_group > 0) {
    const std::int64_t ranks = plan.gpus / (plan.parallel.tp * plan.parallel.pp);
    if (ranks % plan.shard_group == 0 && ranks > plan.shard_group) {
      out.value("ddp.num_distributed_optimizer_instances", ranks / plan.shard_group);
    }
  }
  const bool reduces =
      plan.parallel.overlap_grad_reduce.value_or(fsdp || software.overlap_grad_reduce);
  const bool gathers =
      plan.parallel.overlap_param_gather.value_or(fsdp || software.overlap_param_gather);
  if (reduces) out.on("ddp.overlap_grad_reduce");
  if (gathers && info_of(strategy).shards != Sharded::kNothing) out.on("ddp.overlap_param_gather");
  if (plan.reduce_dtype == DType::kBf16) {
    out.add("--grad-reduce-in-bf16", "", "ddp.grad_reduce_in_fp32", "False");
  } else {
    // By itself beside bf16 alone.
    const bool half = plan.numerics.precision == Precision::kFp16;
    out.add(half ? "--accumulate-allreduce-grads-in-fp32" : "", "", "ddp.grad_reduce_in_fp32",
            "True");
  }
}

void add_pipeline(const Plan& plan, Options& out) {
  const Parallelism& p = plan.parallel;
  out.value("model.pipeline_model_parallel_size", p.pp);
  if (p.pp == 1) return;
  const PipelineInfo& schedule = info_of(p.schedule());
  const auto has = [](const PipelineInfo& one) {
    return one.id == PipelineKind::kOneForwardOneBackward || one.id == PipelineKind::kInterleaved;
  };
  if (!has(schedule)) not_in_megatron("pp_schedule", schedule.name, pipeline_schedules_with(has));
  if (!p.pp_layout.empty()) {
    // The layout says how many virtual stages there are.
    out.word("model.pipeline_model_parallel_layout", p.pp_layout);
  }
  if (p.virtual_stages > 1) {
    out.add(p.pp_layout.empty() ? "--num-virtual-stages-per-pipeline-rank" : "",
            ShellSource::format("{}", p.virtual_stages),
            "model.virtual_pipeline_model_parallel_size",
            PythonSource::format("{}", p.virtual_stages));
  }
}

/// Where layers alone do not divide, Megatron counts embedding and head as a layer each.
void add_stage_split(const Model& model, const Plan& plan, Options& out) {
  const Parallelism& p = plan.parallel;
  const std::int64_t chunks = p.pp * p.virtual_stages;
  if (p.pp == 1 || !p.pp_layout.empty() || model.layers % chunks == 0) return;
  if ((model.layers + 2) % chunks != 0) {
    throw Error(fmt::format(
        "pp times virtual_stages is {}, which divides neither the {} layers nor these with "
        "embedding and head, expected a pp_layout that says where they go",
        chunks, model.layers));
  }
  out.on("model.account_for_embedding_in_pipeline_split");
  out.on("model.account_for_loss_in_pipeline_split");
}

void add_context(const Plan& plan, Options& out) {
  const Parallelism& p = plan.parallel;
  if (p.cp == 1) return;
  out.value("model.context_parallel_size", p.cp);
  const ContextComm comm = p.cp_comm.value_or(ContextComm::kRing);
  out.word("model.cp_comm_type", comm == ContextComm::kRing        ? "p2p"
                                 : comm == ContextComm::kAllGather ? "all_gather"
                                                                   : "a2a");
}

void add_expert_parallelism(const sim::Job& inputs, const Plan& plan, Options& out) {
  if (!inputs.model.is_moe()) return;
  const Parallelism& p = plan.parallel;
  out.value("model.expert_model_parallel_size", p.ep);
  out.value("model.expert_tensor_parallel_size", p.etp);
  const Dispatcher dispatcher =
      p.dispatcher.value_or(profiles::usual_dispatcher(inputs.profile.stack));
  const bool flex = dispatcher == Dispatcher::kDeepEp || dispatcher == Dispatcher::kHybridEp;
  out.word("model.moe_token_dispatcher_type", flex ? "flex" : name_of(dispatcher));
  if (flex) {
    out.word("model.moe_flex_dispatcher_backend", name_of(dispatcher));
  }
  if (p.ep_overlap.value_or(false)) {
    out.on("model.overlap_moe_expert_parallel_comm");
    out.on("model.delay_wgrad_compute");
  }
  if (p.expert_capacity) {
    out.value("model.moe_expert_capacity_factor", *p.expert_capacity);
  }
  if (p.expert_load && p.expert_load->routing == Routing::kBalanced) {
    out.on("model.moe_router_force_load_balancing");
  }
}

void add_parallelism(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings,
                     Options& out) {
  const Parallelism& p = plan.parallel;
  out.group("parallelism");
  out.value("model.tensor_model_parallel_size", p.tp);
  if (p.sequence_parallel()) {
    out.on("model.sequence_parallel");
  } else if (p.tp > 1) {
    out.add("", "", "model.sequence_parallel", "False");
  }
  const TensorOverlap overlap = p.tp_overlap.value_or(
      profiles::usual_overlap(inputs.profile.stack, inputs.model, plan.numerics.precision));
  if (overlap == TensorOverlap::kAsync)
    not_in_megatron("tp_overlap", "async", "none or userbuffers");
  if (overlap == TensorOverlap::kUserbuffers && p.tp > 1) out.on("comm_overlap.tp_comm_overlap");
  add_pipeline(plan, out);
  add_stage_split(inputs.model, plan, out);
  add_context(plan, out);
  add_expert_parallelism(inputs, plan, out);
  if (p.rank_order == "tp-cp-ep-pp-dp") {
    out.on("dist.use_tp_pp_dp_mapping");
  } else if (p.rank_order != Parallelism::kUsualOrder) {
    not_in_megatron("rank_order", p.rank_order, "tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
  }
  add_data_parallelism(inputs, plan, settings, out);
}

void add_precision(const Plan& plan, Options& out) {
  const Numerics& n = plan.numerics;
  out.group("precision");
  if (plan.param_dtype == DType::kFp32 && n.precision == Precision::kBf16) return;
  out.on(n.precision == Precision::kFp16 ? "--fp16" : "--bf16");
  if (n.precision == Precision::kNvfp4) {
    out.word("--fp4-format", "e2m1");
    out.word("--fp4-recipe", "nvfp4");
  }
  if (n.precision != Precision::kFp8) return;
  const Fp8Recipe recipe = sim::fp8_recipe_of(plan);
  if (recipe == Fp8Recipe::kRowwise) {
    not_in_megatron("fp8_recipe", "rowwise", "delayed, tensorwise, block or mxfp8");
  }
  const bool per_tensor = recipe == Fp8Recipe::kDelayed || recipe == Fp8Recipe::kTensorwise;
  out.word("--fp8-format", per_tensor ? "hybrid" : "e4m3");
  out.word("--fp8-recipe", recipe == Fp8Recipe::kBlock ? "blockwise" : name_of(recipe));
  if (n.fp8_params) out.on("--fp8-param-gather");
}

/// What validate_args and OptimizerConfig demand of --optimizer-cpu-offload, which goes with
/// --use-precision-aware-optimizer.
void check_offloaded_optimizer(const Plan& plan) {
  const bool shards = info_of(megatron_strategy(plan.strategy)).shards != Sharded::kNothing;
  if (!shards) {
    not_in_megatron("offload", "optimizer with every rank's whole optimizer state",
                    "strategy distributed-optimizer");
  }
  if (plan.numerics.optimizer != Optimizer::kAdamw)
    not_in_megatron("offload", fmt::format("optimizer {}", name_of(plan.numerics.optimizer)),
                    "adamw");
  if (plan.numerics.fp8_params && sim::fp8_recipe_of(plan) != Fp8Recipe::kDelayed)
    not_in_megatron("offload", "optimizer with fp8_params", "fp8_recipe delayed or fp8_params off");
}

void add_optimizer(const Plan& plan, TrainerSettings& settings, Options& out) {
  out.group("optimizer");
  switch (plan.numerics.optimizer) {
    case Optimizer::kAdamw:
      out.word("optimizer.optimizer", "adam");
      break;
    case Optimizer::kSgd:
      out.word("optimizer.optimizer", "sgd");
      break;
    case Optimizer::kMuon:
      out.word("optimizer.optimizer", "muon");
      break;
    case Optimizer::kAdamw8bit:
      not_in_megatron("optimizer", "adamw-8bit", "adamw, muon or sgd");
  }
  const bool narrow = plan.moment_dtype != DType::kFp32 || plan.master_dtype != DType::kFp32;
  const bool offloads = plan.offload == Offload::kOptimizer;
  if (offloads) check_offloaded_optimizer(plan);
  if (narrow || offloads) {
    const bool half = plan.moment_dtype == DType::kBf16;
    const char* const moments = half ? "bf16" : "fp32";
    const char* const torch = half ? "torch.bfloat16" : "torch.float32";
    out.on("optimizer.use_precision_aware_optimizer");
    out.add("--exp-avg-dtype", moments, "optimizer.exp_avg_dtype", torch);
    out.add("--exp-avg-sq-dtype", moments, "optimizer.exp_avg_sq_dtype", torch);
    if (plan.master_dtype != DType::kFp32) {
      settings.lost("master_dtype",
                    "bf16; Megatron keeps main parameters in fp32, or in fp16 with "
                    "--main-params-dtype fp16");
      settings.as_run.master_dtype = DType::kFp32;
    }
  }
  if (offloads) {
    out.on("optimizer.optimizer_cpu_offload");
    out.add("--optimizer-offload-fraction", "1.0", "optimizer.optimizer_offload_fraction", "1.0");
    out.on("optimizer.overlap_cpu_optimizer_d2h_h2d");
    settings.said("offload",
                  "Megatron updates offloaded state on the processor; predicted is an update on "
                  "the GPU with the state passing through");
  } else if (plan.offload == Offload::kActivations) {
    out.add("", "", "model.cpu_offloading", "True");
    out.add("", "", "model.cpu_offloading_num_layers",
            PythonSource::format("{}", plan.offload_layers));
    settings.said("offload",
                  "Megatron-LM's command line has no offloading of activations; it is a field of "
                  "its configuration (cpu_offloading_num_layers)");
  }
}

/// Megatron's names of modules that can run again.
std::vector<std::string> recomputed_modules(const Model& model, const Plan& plan,
                                            TrainerSettings& settings) {
  constexpr std::pair<RecomputePiece, const char*> kModules[] = {
      {kPieceNorm, "layernorm"},
      {kPieceCoreAttention, "core_attn"},
      {kPieceMlaUpProjection, "mla_up_proj"},
      {kPieceMoe, "moe"},
      {kPieceMoeActivation, "moe_act"},
      {kPieceSharedExperts, "shared_experts"}};
  std::vector<std::string> modules;
  std::uint16_t told = 0;
  for (const auto& [piece, name] : kModules) {
    if ((plan.pieces & piece) == 0) continue;
    modules.emplace_back(name);
    told |= piece;
  }
  const auto also = [&](RecomputePiece piece, const char* name) {
    if ((plan.pieces & piece) == 0) return;
    modules.emplace_back(name);
    told |= piece;
  };
  if (!model.is_moe()) also(kPieceFfn, "mlp");
  if (model.is_moe()) also(kPieceSwiglu, "moe_act");
  if (told != plan.pieces) {
    settings.lost(
        "recompute",
        fmt::format("{}; of these Megatron recomputes only {}", recompute_name(plan),
                    modules.empty() ? "none" : fmt::format("{}", fmt::join(modules, ", "))));
    settings.as_run.pieces = told;
    if (told == 0) settings.as_run.recompute = Recompute::kNone;
  }
  return modules;
}

void add_recomputation(const Model& model, const Plan& plan, TrainerSettings& settings,
                       Options& out) {
  out.group("recomputation");
  const std::int64_t k = checkpointed_layers(plan);
  if (k == 0) return;
  if (plan.recompute == Recompute::kFull) {
    const std::int64_t chunks = plan.parallel.pp * plan.parallel.virtual_stages;
    const bool all = k == model.layers;
    out.word("model.recompute_granularity", "full");
    out.word("model.recompute_method", all ? "uniform" : "block");
    const std::int64_t each = all ? 1 : (k + chunks - 1) / chunks;
    out.value("model.recompute_num_layers", each);
    if (!all && each * chunks != k) {
      settings.lost("ckpt_layers",
                    fmt::format("{} recompute; Megatron counts them by chunk of a stage, and {} "
                                "in each of {} chunks are {}",
                                of_layers(k, model.layers), each, chunks, each * chunks));
      settings.as_run.ckpt_layers = std::min(model.layers, each * chunks);
    }
    return;
  }
  std::vector<std::string> modules;
  if (plan.recompute == Recompute::kSelectiveOp) {
    settings.lost("recompute",
                  "selective-op; Megatron recomputes modules, and the nearest is core_attn");
    settings.as_run.recompute = Recompute::kPieces;
    settings.as_run.pieces = kPieceCoreAttention;
    modules = {"core_attn"};
  } else {
    modules = recomputed_modules(model, plan, settings);
  }
  if (modules.empty()) return;
  if (k < model.layers) {
    settings.lost("ckpt_layers", fmt::format("{} recompute; Megatron's modules do in all layers",
                                             of_layers(k, model.layers)));
    settings.as_run.ckpt_layers = model.layers;
  }
  out.word("model.recompute_granularity", "selective");
  ShellSource words;
  PythonSource list;
  for (const std::string& module : modules) {
    const char* const gap = &module == &modules[0] ? "" : " ";
    words += gap + shell_word(module);
    list += PythonSource::format("{}{}{}", *gap == 0 ? "" : ",", gap, string_literal(module));
  }
  out.add("--recompute-modules", words, "model.recompute_modules",
          PythonSource::format("[{}]", list));
}

void remark_rest(const Plan& plan, TrainerSettings& settings) {
  const Plan usual;
  if (plan.deterministic) {
    settings.lost("deterministic", "on; Megatron's --deterministic-mode changes more than this");
    settings.as_run.deterministic = false;
  }
  if (plan.buffers != usual.buffers || plan.prefetch != usual.prefetch) {
    settings.lost("prefetch", fmt::format("{} buffers and {} gathered ahead; Megatron gathers by "
                                          "bucket",
                                          plan.buffers, plan.prefetch));
  }
  settings.as_run.buffers = usual.buffers;
  settings.as_run.prefetch = usual.prefetch;
}

/// What the model is. Arguments only: a recipe of Bridge has its model already.
MegatronOptions megatron_model_options(const sim::Job& inputs, const Plan& plan,
                                       TrainerSettings& settings) {
  const Model& model = inputs.model;
  Options out;
  out.group("model");
  out.value("--num-layers", model.layers);
  out.value("--hidden-size", model.hidden);
  out.value("--ffn-hidden-size", model.ffn);
  out.value("--num-attention-heads", model.heads);
  add_attention(model, out);
  out.value("--seq-length", plan.seq_len);
  out.value("--max-position-embeddings", std::max(plan.seq_len, model.max_positions));
  out.word("--normalization", model.norm == Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm");
  if (model.gated_mlp) out.on("--swiglu");
  if (model.activation == Activation::kRelu) out.on("--squared-relu");
  if (model.position == Position::kRope) {
    out.word("--position-embedding-type", "rope");
    out.word("--rotary-base", fmt::format("{:.0f}", model.rope.theta));
    if (model.rope.rotary_fraction < 1)
      out.word("--rotary-percent", fmt::format("{}", model.rope.rotary_fraction));
  } else if (model.position == Position::kLearned) {
    out.word("--position-embedding-type", "learned_absolute");
  } else {
    settings.lost("model", "its attention is biased by distance (ALiBi), which Megatron has not");
  }
  if (!model.tied_head) out.on("--untie-embeddings-and-output-weights");
  if (!model.mlp_bias && !model.attention_out_bias) out.on("--disable-bias-linear");
  if (model.qkv_bias && !model.mlp_bias) out.on("--add-qkv-bias");
  out.word("--attention-dropout", "0.0");
  out.word("--hidden-dropout", "0.0");
  out.value("--vocab-size", model.vocab);
  if (model.is_moe()) add_experts(model, out);
  if (model.mtp_layers > 0) out.value("--mtp-num-layers", model.mtp_layers);
  if (model.sliding_window > 0) {
    settings.lost("model",
                  "its attention has windows; pass --window-size and, where only some "
                  "layers have one, --window-attn-skip-freq");
  }
  return std::move(out).take();
}

/// How it is trained, with remarks on what Megatron cannot be told. Throws Error naming a schedule,
/// an order of ranks or another choice that it does not have.
MegatronOptions megatron_plan_options(const sim::Job& inputs, const Plan& plan,
                                      TrainerSettings& settings) {
  settings.as_run = plan;
  remark_stack(plan, "Megatron",
               inputs.profile.stack.optimizer.bucketed ? plan.stack : "megatron-core", settings);
  Options out;
  add_parallelism(inputs, plan, settings, out);
  out.group("batch");
  const std::int64_t replicas = plan.gpus / plan.parallel.replica();
  out.value("train.micro_batch_size", plan.micro_batch);
  out.value("train.global_batch_size", plan.micro_batch * plan.grad_accum * replicas);
  add_precision(plan, out);
  add_optimizer(plan, settings, out);
  add_recomputation(inputs.model, plan, settings, out);
  if (plan.attention == AttentionKind::kEager) {
    out.group("attention");
    out.add("--attention-backend", "unfused", "", "");
  }
  remark_rest(plan, settings);
  return std::move(out).take();
}

/// "PARALLELISM_ARGS" of "parallelism".
Bare array_name(std::string group) {
  for (char& c : group) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return bare(group + "_ARGS");
}

ShellSource bash_arrays(const MegatronOptions& options, std::vector<Bare>& names) {
  ShellSource text;
  std::string_view group;
  for (const MegatronOption& option : options) {
    if (option.argument.empty()) continue;
    if (option.group != group) {
      names.push_back(array_name(std::string(option.group)));
      text += ShellSource::format("{}{}=(\n", group.empty() ? "" : ")\n", names.back());
      group = option.group;
    }
    text += ShellSource::format("  {}{}{}\n", shell_word(option.argument),
                                option.value.text().empty() ? "" : " ", option.value);
  }
  return text.text().empty() ? text : text + ")\n";
}

/// Collectives must be issued before the products that they run beside.
bool one_connection(const sim::Job& inputs, const Plan& run) {
  const bool blackwell = inputs.profile.cluster.gpu.architecture == "blackwell";
  const bool divides = run.parallel.tp > 1 || run.parallel.cp > 1;
  return divides && !blackwell && run.strategy != Strategy::kMegatronFsdp &&
         !run.parallel.ep_overlap.value_or(false);
}

struct Recipe {
  std::string_view family;
  std::int64_t layers, hidden;
  std::string_view module, function;
};

// megatron/bridge/recipes/*/*.py of 0.3.
constexpr std::array<Recipe, 20> kRecipes = {{
    {"llama", 16, 2048, "llama.llama3", "llama32_1b_pretrain_config"},
    {"llama", 28, 3072, "llama.llama3", "llama32_3b_pretrain_config"},
    {"llama", 32, 4096, "llama.llama3", "llama31_8b_pretrain_config"},
    {"llama", 80, 8192, "llama.llama3", "llama31_70b_pretrain_config"},
    {"llama", 126, 16384, "llama.llama3", "llama31_405b_pretrain_config"},
    {"qwen2", 28, 3584, "qwen.qwen2", "qwen25_7b_pretrain_config"},
    {"qwen2", 48, 5120, "qwen.qwen2", "qwen25_14b_pretrain_config"},
    {"qwen2", 64, 5120, "qwen.qwen2", "qwen25_32b_pretrain_config"},
    {"qwen2", 80, 8192, "qwen.qwen2", "qwen25_72b_pretrain_config"},
    {"qwen3", 36, 2560, "qwen.qwen3", "qwen3_4b_pretrain_config"},
    {"qwen3", 36, 4096, "qwen.qwen3", "qwen3_8b_pretrain_config"},
    {"qwen3", 40, 5120, "qwen.qwen3", "qwen3_14b_pretrain_config"},
    {"qwen3", 64, 5120, "qwen.qwen3", "qwen3_32b_pretrain_config"},
    {"qwen3_moe", 48, 2048, "qwen.qwen3_moe", "qwen3_30b_a3b_pretrain_config"},
    {"qwen3_moe", 94, 4096, "qwen.qwen3_moe", "qwen3_235b_a22b_pretrain_config"},
    {"gpt_oss", 24, 2880, "gpt_oss.gpt_oss", "gpt_oss_20b_pretrain_config"},
    {"gpt_oss", 36, 2880, "gpt_oss.gpt_oss", "gpt_oss_120b_pretrain_config"},
    {"deepseek_v2", 60, 5120, "deepseek.deepseek_v2", "deepseek_v2_pretrain_config"},
    {"deepseek_v3", 61, 7168, "deepseek.deepseek_v3", "deepseek_v3_pretrain_config"},
    {"kimi_k2", 61, 7168, "kimi.kimi_k2", "kimi_k2_pretrain_config"},
}};

/// Of equal sizes the one with as many words: Llama 2 has Llama 3's layers.
const Recipe* recipe_of(const Model& model) {
  for (const Recipe& recipe : kRecipes) {
    const bool llama3 = recipe.family != "llama" || model.vocab == 128256;
    // Kimi-K2 is a deepseek_v3 with more experts.
    std::string_view family = model.family;
    if (family == "deepseek_v3" && model.experts.count == 384) family = "kimi_k2";
    if (recipe.family == family && recipe.layers == model.layers && recipe.hidden == model.hidden &&
        llama3) {
      return &recipe;
    }
  }
  return nullptr;
}

/// The registered precision recipe, as training/mixed_precision.py names them.
std::string_view precision_recipe(const Plan& plan) {
  const Numerics& n = plan.numerics;
  switch (n.precision) {
    case Precision::kFp16:
      return "fp16_mixed";
    case Precision::kNvfp4:
      return "bf16_with_nvfp4_mixed";
    case Precision::kBf16:
      return plan.param_dtype == DType::kFp32 ? "" : "bf16_mixed";
    case Precision::kFp8:
      break;
  }
  switch (sim::fp8_recipe_of(plan)) {
    case Fp8Recipe::kTensorwise:
      return "bf16_with_fp8_current_scaling_mixed";
    case Fp8Recipe::kBlock:
      return "bf16_with_fp8_subchannel_scaling_mixed";
    case Fp8Recipe::kMxfp8:
      return "bf16_with_mxfp8_mixed";
    default:
      return "bf16_with_fp8_delayed_scaling_mixed";
  }
}

PythonSource bridge_overrides(const MegatronOptions& options) {
  PythonSource text;
  for (const MegatronOption& option : options) {
    if (option.field.empty() || option.field.starts_with("comm_overlap.")) continue;
    text += PythonSource::format("    config.{} = {}\n", bare(option.field), option.python);
  }
  return text;
}

bool has_field(const MegatronOptions& options, std::string_view field) {
  for (const MegatronOption& option : options) {
    if (option.field == field) return true;
  }
  return false;
}

}  // namespace

bool is_megatron(const SettingBox& box) {
  return box.has("tensor_model_parallel_size") || box.has("model.tensor_model_parallel_size") ||
         box.has("pipeline_model_parallel_size") || box.has("model.pipeline_model_parallel_size") ||
         (box.has("micro_batch_size") && box.has("seq_length")) ||
         (box.has("train.micro_batch_size") && box.has("train.global_batch_size")) ||
         (box.has("model") && (box.has("train") || box.has("begins_with")) &&
          !box.has("model_spec"));
}

void read_megatron(SettingBox& box, ImportedConfig& to) {
  if (box.take("decoder_seq_length"))
    box.fail("no such key, because models with an encoder are not predicted");
  if (box.is_on("perform_rl_step"))
    box.fail("no such key, because steps of reinforcement learning are not predicted");
  to.stack = "megatron-core";
  to.knobs.recompute.reset();
  take_degrees(box, to);
  take_sizes(box, to);
  take_adapters(box, to);
  if (!MegatronKeys("micro_batch_size").knob(box, "micro-batch", to))
    to.assumed.push_back("micro_batch_size is not said: 1");
  const bool has_length = MegatronKeys("seq_length").knob(box, "seq-len", to) ||
                          MegatronKeys("sequence_length").knob(box, "seq-len", to) ||
                          MegatronKeys("encoder_seq_length").knob(box, "seq-len", to);
  static_cast<void>(MegatronKeys("seq_length").take(box));
  if (const auto global = MegatronKeys("global_batch_size").count(box)) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
  assume_common(box, to);
  if (!has_length && !to.knobs.seq_len)
    to.assumed.push_back("seq_length is not said: 2048 (--seq-len)");
  take_sharding_strategy(box, to);
  take_overlap(box, to);
  take_recomputation(box, to);
  take_megatron_numbers(box, to);
  if (const auto gpus = gpus_in_name(box.file()); gpus > 0) {
    to.gpus = gpus;
    to.assumed.push_back(fmt::format("{} GPUs, by the recipe's name (--gpus)", gpus));
  }
  if (const auto ranks = box.take_count("world_size")) to.gpus = *ranks;
  auto processes = box.take_count("nproc_per_node");
  if (!processes) processes = box.take_count("gpus_per_node ntasks_per_node");
  auto nodes = box.take_count("nnodes nodes");
  if (processes) {
    to.gpus = *processes * nodes.value_or(1);
    box.took(fmt::format("{} GPUs", *to.gpus), to);
  }
}

TrainerSettings megatron_lm_settings(const sim::Job& inputs, const Plan& plan) {
  if (plan.numerics.lora > 0) {
    throw Error(
        fmt::format("lora is {}, which Megatron-LM does not have, expected --format "
                    "megatron-bridge",
                    plan.numerics.lora));
  }
  TrainerSettings settings;
  MegatronOptions options = megatron_plan_options(inputs, plan, settings);
  const MegatronOptions model = megatron_model_options(inputs, plan, settings);
  options.insert(options.begin(), model.begin(), model.end());
  std::vector<Bare> names;
  const ShellSource arrays = bash_arrays(options, names);
  ShellSource environment;
  if (one_connection(inputs, settings.as_run)) {
    environment += "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  }
  if (plan.allocator == AllocatorKind::kExpandable) {
    environment += "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
  }
  ShellSource all;
  for (const Bare& name : names)
    all += ShellSource::format("{}\"${{{}[@]}}\"", all.text().empty() ? "" : " ", name);
  settings.body = environment + arrays + ShellSource::format("MEGATRON_ARGS=({})\n", all);
  const Ranks ranks = ranks_of(inputs, settings.as_run);
  settings.said("gpus",
                fmt::format("source the file and start with torchrun --nnodes={} "
                            "--nproc_per_node={} pretrain_gpt.py \"${{MEGATRON_ARGS[@]}}\" and "
                            "the arguments of data, tokenizer, learning rate and checkpoints",
                            ranks.nodes, ranks.per_node));
  return settings;
}

TrainerSettings megatron_bridge_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const MegatronOptions options = megatron_plan_options(inputs, plan, settings);
  const Recipe* recipe = recipe_of(inputs.model);
  const bool torch = has_field(options, "optimizer.exp_avg_dtype");
  PythonSource text;
  if (torch) text += "import torch\n";
  const bool lora = plan.numerics.lora > 0;
  if (plan.numerics.quantize != Quantize::kNone) {
    settings.lost("quantize",
                  fmt::format("{}; Megatron-Bridge keeps frozen weights in the model's type",
                              name_of(plan.numerics.quantize)));
    settings.as_run.numerics.quantize = Quantize::kNone;
  }
  if (lora) text += "from megatron.bridge.peft.lora import LoRA\n";
  if (recipe != nullptr) {
    text += PythonSource::format("from megatron.bridge.recipes.{} import {} as recipe\n",
                                 bare(recipe->module), bare(recipe->function));
  } else {
    settings.lost("model",
                  "Megatron-Bridge has no recipe of this model: pass plan() a function "
                  "that makes its ConfigContainer");
  }
  text += "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n";
  const std::string_view precision = precision_recipe(plan);
  // A recipe overrides what the section of DDP says of reductions: all but fp16's are in fp32.
  const bool names_recipe = !precision.empty();
  const bool own_recipe = (plan.reduce_dtype == DType::kBf16) != (precision == "fp16_mixed");
  if (names_recipe && own_recipe)
    text += "from megatron.bridge.training.mixed_precision import get_mixed_precision_config\n";
  text += recipe != nullptr ? "\n\ndef plan(recipe=recipe):\n" : "\n\ndef plan(recipe):\n";
  text += "    config = recipe()\n" + bridge_overrides(options);
  if (!has_field(options, "model.sequence_parallel")) {
    text += "    config.model.sequence_parallel = False\n";
  }
  for (const auto& [field, rest] : std::initializer_list<std::pair<const char*, const char*>>{
           {"virtual_pipeline_model_parallel_size", "None"},
           {"pipeline_model_parallel_layout", "None"},
           {"context_parallel_size", "1"},
           {"recompute_granularity", "None"}}) {
    // A recipe may have set what the plan leaves alone.
    if (!has_field(options, std::string("model.") + field))
      text += PythonSource::format("    config.model.{} = {}\n", field, rest);
  }
  text += PythonSource::format("    config.model.seq_length = {}\n", plan.seq_len);
  text += PythonSource::format("    config.dataset.seq_length = {}\n", plan.seq_len);
  if (names_recipe && !own_recipe)
    text += PythonSource::format("    config.mixed_precision = {}\n", string_literal(precision));
  if (names_recipe && own_recipe) {
    text += PythonSource::format(
        "    config.mixed_precision = get_mixed_precision_config({})\n"
        "    config.mixed_precision.grad_reduce_in_fp32 = {}\n",
        string_literal(precision), plan.reduce_dtype == DType::kBf16 ? "False" : "True");
  }
  text +=
      PythonSource::format("    config.comm_overlap = CommOverlapConfig(tp_comm_overlap={})\n",
                           has_field(options, "comm_overlap.tp_comm_overlap") ? "True" : "False");
  if (lora) {
    text += PythonSource::format("    config.peft = LoRA(dim={})\n", plan.numerics.lora);
  }
  settings.body = text + "    return config\n";
  if (plan.numerics.fp8_params) {
    settings.said("fp8_params",
                  "the precision recipe decides it: set fp8_param_gather in a "
                  "MixedPrecisionConfig of your own to change it");
  }
  const Ranks ranks = ranks_of(inputs, settings.as_run);
  settings.said("gpus", fmt::format("save it as shardwright_plan.py and call "
                                    "megatron.bridge.training.pretrain.pretrain(plan(), "
                                    "forward_step) under torchrun --nnodes={} "
                                    "--nproc_per_node={}",
                                    ranks.nodes, ranks.per_node));
  return settings;
}

}  // namespace shardwright::cli
