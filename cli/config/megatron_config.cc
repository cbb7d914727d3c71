// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's arguments (a launch script) and Megatron-Bridge's configuration (YAML, overrides, a
// recipe in Python), which have the same names in other sections. Names from Megatron-LM's
// megatron/training/arguments.py and Megatron-Bridge's docs and training/config.py.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "cli/config/imported.h"

namespace shardwright::cli {
namespace {

/// "tensor_model_parallel_size" where Megatron-LM has it, and in the sections of Megatron-Bridge.
class Keys {
 public:
  explicit Keys(std::string_view name) {
    for (std::size_t i = 0; i < kSections.size(); ++i)
      all_[i] = std::string(kSections[i]) + std::string(name);
  }
  std::optional<std::string> take(SettingBox& box) const {
    for (const std::string& key : all_) {
      if (const auto value = box.take({key})) return value;
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
      if (const auto value = box.take_switch({key})) return *value;
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

void take_degrees(SettingBox& box, ImportedConfig& to) {
  for (const auto& [name, knob] : {std::pair{"tensor_model_parallel_size", "tp"},
                                   {"pipeline_model_parallel_size", "pp"},
                                   {"context_parallel_size", "cp"},
                                   {"expert_model_parallel_size", "ep"},
                                   {"expert_tensor_parallel_size", "etp"},
                                   {"virtual_pipeline_model_parallel_size", "virtual-stages"}}) {
    if (const auto ranks = Keys(name).count(box); ranks.value_or(1) > 1)
      box.set_knob(knob, fmt::format("{}", *ranks), to);
  }
  if (const auto layout = Keys("pipeline_model_parallel_layout").take(box))
    box.set_knob("pp-layout", *layout, to);
  const bool sequence = Keys("sequence_parallel").on(box);
  if (to.knobs.parallel.tp.value_or(1) > 1) {
    to.knobs.parallel.sp = sequence;
    if (sequence) box.took("sp on", to);
  }
  if (Keys("tp_comm_overlap").on(box)) box.set_knob("tp-overlap", "userbuffers", to);
  if (const auto type = Keys("cp_comm_type").take(box)) {
    const std::string word = *type == "p2p" ? "ring" : *type == "all_gather" ? "all-gather" : *type;
    box.set_knob("cp-comm", word, to);
  }
  if (const auto type = Keys("moe_token_dispatcher_type").take(box)) {
    const std::string backend = Keys("moe_flex_dispatcher_backend").take(box).value_or("deepep");
    box.set_knob("dispatcher", *type == "flex" ? backend : *type, to);
  }
}

void take_layers_per_chunk(SettingBox& box, std::int64_t layers, ImportedConfig& to) {
  const auto per_chunk = Keys("num_layers_per_virtual_pipeline_stage").count(box);
  const std::int64_t stages = to.knobs.parallel.pp.value_or(1);
  if (!per_chunk || layers <= 0 || layers % (stages * *per_chunk) != 0) return;
  box.set_knob("virtual-stages", fmt::format("{}", layers / (stages * *per_chunk)), to);
}

void take_recomputation(SettingBox& box, ImportedConfig& to) {
  const auto granularity = Keys("recompute_granularity").take(box);
  const bool given = granularity.has_value();
  const auto method = Keys("recompute_method").take(box);
  const std::string how = method.value_or("uniform");
  const auto count = Keys("recompute_num_layers").count(box);
  if (!given) {
    if (Keys("recompute_activations").on(box)) box.set_knob("recompute", "core_attn", to);
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
  if (const auto list = Keys("recompute_modules").take(box)) modules = *list;
  for (int i = 0; i < 16; ++i) {
    const auto module = Keys(fmt::format("recompute_modules[{}]", i)).take(box);
    if (!module) break;
    modules += (modules.empty() ? "" : " ") + *module;
  }
  if (modules.empty()) modules = "core_attn";
  std::replace(modules.begin(), modules.end(), ' ', ',');
  for (const auto& [theirs, ours] :
       {std::pair<std::string, std::string>{"layernorm", "norm"}, {"mlp", "ffn"}}) {
    const std::size_t at = modules.find(theirs);
    if (at != modules.npos) modules.replace(at, theirs.size(), ours);
  }
  box.set_knob("recompute", modules, to);
}

void take_numbers(SettingBox& box, ImportedConfig& to) {
  if (const auto recipe = box.take({"mixed_precision"})) {
    if (recipe->find("fp8") != recipe->npos) {
      box.set_knob("precision", "fp8", to);
      for (const auto& [part, word] : {std::pair{"delayed", "delayed"},
                                       {"current", "tensorwise"},
                                       {"subchannel", "block"},
                                       {"mxfp8", "mxfp8"}}) {
        if (recipe->find(part) != recipe->npos) box.set_knob("fp8-recipe", word, to);
      }
    } else if (recipe->find("nvfp4") != recipe->npos) {
      box.set_knob("precision", "nvfp4", to);
    } else {
      box.took("bf16", to);
    }
  }
  static_cast<void>(Keys("bf16").on(box));
  if (Keys("fp16").on(box)) box.set_knob("precision", "fp16", to);
  if (const auto format =
          Keys("fp8_format").take(box) ? std::optional(box.value()) : Keys("fp8").take(box);
      format && *format != "false") {
    box.set_knob("precision", "fp8", to);
    if (const auto recipe = Keys("fp8_recipe").take(box)) {
      box.set_knob("fp8-recipe", *recipe == "blockwise" ? "block" : *recipe, to);
    }
  }
  if (Keys("fp8_param_gather").on(box)) box.set_knob("fp8-params", "on", to);
  if (const auto name = Keys("optimizer").take(box)) {
    if (*name == "adam") {
      box.took("optimizer adamw", to);
    } else {
      box.set_knob("optimizer", name->find("muon") != name->npos ? "muon" : *name, to);
    }
  }
  if (const auto name = Keys("grad_reduce_in_bf16").on(box)) {
    static_cast<void>(name);
    box.set_knob("reduce-dtype", "bf16", to);
  }
  if (Keys("accumulate_allreduce_grads_in_fp32").on(box)) box.set_knob("reduce-dtype", "fp32", to);
  box.leave({"optimizer_cpu_offload", "optimizer.optimizer_cpu_offload"},
            "the optimizer stays on the GPU here (--offload optimizer)", to);
}

void take_sizes(SettingBox& box, ImportedConfig& to) {
  const auto layers = Keys("num_layers").count(box);
  const auto hidden = Keys("hidden_size").count(box);
  const auto ffn = Keys("ffn_hidden_size").count(box);
  take_layers_per_chunk(box, layers.value_or(0), to);
  if (!layers || !hidden) return;
  to.model = model_with(*layers, *hidden, ffn);
  to.taken.push_back({"num_layers", fmt::format("{}", *layers),
                      to.model.empty() ? "no single shipped model of these sizes: give --model"
                                       : fmt::format("model {}, by its sizes", to.model)});
  for (const char* size : {"num_attention_heads",
                           "num_query_groups",
                           "group_query_attention",
                           "kv_channels",
                           "max_position_embeddings",
                           "swiglu",
                           "normalization",
                           "position_embedding_type",
                           "rotary_base",
                           "rotary_percent",
                           "num_experts",
                           "moe_router_topk",
                           "moe_ffn_hidden_size",
                           "vocab_size",
                           "disable_bias_linear",
                           "untie_embeddings_and_output_weights",
                           "attention_dropout",
                           "hidden_dropout",
                           "use_rotary_position_embeddings",
                           "init_method_std",
                           "make_vocab_size_divisible_by",
                           "moe_grouped_gemm",
                           "use_flash_attn",
                           "norm_epsilon",
                           "moe_router_load_balancing_type",
                           "moe_aux_loss_coeff",
                           "no_masked_softmax_fusion",
                           "use_mcore_models",
                           "no_position_embedding"}) {
    static_cast<void>(Keys(size).take(box));
  }
}

}  // namespace

bool is_megatron(const SettingBox& box) {
  return box.has("tensor_model_parallel_size") || box.has("model.tensor_model_parallel_size") ||
         box.has("pipeline_model_parallel_size") || box.has("model.pipeline_model_parallel_size") ||
         (box.has("micro_batch_size") && box.has("seq_length")) ||
         (box.has("train.micro_batch_size") && box.has("train.global_batch_size"));
}

void read_megatron(SettingBox& box, ImportedConfig& to) {
  to.stack = "megatron-core";
  to.knobs.recompute.reset();
  take_degrees(box, to);
  take_sizes(box, to);
  if (!Keys("micro_batch_size").knob(box, "micro-batch", to))
    to.assumed.push_back("micro_batch_size is not said: 1");
  if (!Keys("seq_length").knob(box, "seq-len", to) &&
      !Keys("sequence_length").knob(box, "seq-len", to)) {
    to.assumed.push_back("seq_length is not said: 2048 (--seq-len)");
  }
  static_cast<void>(Keys("seq_length").take(box));
  if (const auto global = Keys("global_batch_size").count(box)) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
  const bool fsdp = Keys("use_megatron_fsdp").on(box) || Keys("use_custom_fsdp").on(box);
  const bool divided = Keys("use_distributed_optimizer").on(box);
  to.strategy = fsdp      ? Strategy::kMegatronFsdp
                : divided ? Strategy::kDistributedOptimizer
                          : Strategy::kDdp;
  if (fsdp || divided) box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  if (!fsdp && !divided)
    to.assumed.push_back(
        "no use_distributed_optimizer: every rank keeps the whole optimizer state");
  static_cast<void>(Keys("overlap_grad_reduce").on(box));
  static_cast<void>(Keys("overlap_param_gather").on(box));
  static_cast<void>(Keys("data_parallel_sharding_strategy").take(box));
  take_recomputation(box, to);
  take_numbers(box, to);
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
