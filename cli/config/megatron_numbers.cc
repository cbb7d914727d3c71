// SPDX-License-Identifier: Apache-2.0
// What Megatron computes, reduces and keeps in which type.
#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

#include "cli/config/imported.h"
#include "cli/config/megatron_keys.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {
namespace {

/// fp16 is reduced in 16 bits unless another setting says otherwise.
void take_half(SettingBox& box, ImportedConfig& to) {
  box.set_knob("precision", "fp16", to);
  to.knobs.reduce_dtype = DType::kBf16;
}

/// "bf16_with_mxfp8_mixed", "get_mixed_precision_config(...)", "bf16_mixed() -> ...".
void take_precision_recipe(SettingBox& box, ImportedConfig& to) {
  const auto recipe = box.take({"mixed_precision"});
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
  auto name = box.take({"optimizer.optimizer"});
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

}  // namespace

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
  const auto reduces = box.take_switch({"mixed_precision.grad_reduce_in_fp32"});
  const auto ddp = box.take_switch({"ddp.grad_reduce_in_fp32"});
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

}  // namespace shardwright::cli
