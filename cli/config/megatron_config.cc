// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's arguments (a launch script) and Megatron-Bridge's configuration (YAML, overrides, a
// recipe in Python), which have the same names in other sections. Names from Megatron-LM's
// megatron/training/arguments.py and Megatron-Bridge's docs and training/config.py.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cli/config/imported.h"
#include "cli/config/megatron_keys.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

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
    const auto on = box.take_switch({fmt::format("{}use_distributed_optimizer", section)});
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
    auto on = box.take_switch({fmt::format("comm_overlap.{}", name)});
    const auto by_section = box.take_switch({fmt::format("ddp.{}", name)});
    const auto by_flag = box.take_switch({name});
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
  const auto scheme = box.take({"peft"});
  const auto by_name = box.take({"peft_scheme"});
  std::string word = lower_case(scheme.value_or(by_name.value_or("")));
  if (!said && word.empty() && begins_with(box, "_peft_common")) word = "lora";
  const auto dim = box.take_count({"peft.dim"});
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
  const std::string base = box.take({"begins_with"}).value_or("");
  to.assumed.push_back(fmt::format(
      "it begins with {}: what it does not say is that one's, a micro-batch of {}, a global batch "
      "of {}, sequences of {} and a distributed optimizer",
      base.substr(base.rfind('.') + 1), pretrains ? 2 : 1, pretrains ? 32 : 128,
      pretrains ? 4096 : 2048));
}

/// "AutoBridge.from_hf_pretrained(meta-llama/Llama-3.2-1B).get_model_config()": its argument.
void take_pretrained(SettingBox& box, ImportedConfig& to) {
  const auto call = box.take({"model"});
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

}  // namespace

namespace {

/// "llama3_8b_peft_1gpu_h100_bf16_config" says 1; 0 where it says none.
std::int64_t gpus_in_name(const std::string& file) {
  const std::size_t colon = file.rfind(".py:");
  const std::size_t end = colon == file.npos ? colon : file.find("gpu_", colon);
  if (end == file.npos) return 0;
  const std::size_t begin = file.find_last_not_of("0123456789", end - 1) + 1;
  return parse_int64(file.substr(begin, end - begin)).value_or(0);
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
  if (box.take({"decoder_seq_length"}))
    box.fail("no such key, because models with an encoder are not predicted");
  if (box.take_switch({"perform_rl_step"}).value_or(false))
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
  if (const auto ranks = box.take_count({"world_size"})) to.gpus = *ranks;
  auto processes = box.take_count({"nproc_per_node"});
  if (!processes) processes = box.take_count({"gpus_per_node", "ntasks_per_node"});
  auto nodes = box.take_count({"nnodes", "nodes"});
  if (processes) {
    to.gpus = *processes * nodes.value_or(1);
    box.took(fmt::format("{} GPUs", *to.gpus), to);
  }
}

}  // namespace shardwright::cli
