// SPDX-License-Identifier: Apache-2.0
// YaFSDP has no config file: its settings are the arguments of its wrapper. This writes a Python
// module with functions for a Transformers model: shard() and checkpoint() for the class YaFSDP of
// release 1, which is what is predicted, and fully_shard_model() for release 2 (2025 on). Arguments
// from ya_fsdp/ya_fsdp.py, ya_fsdp/fully_shard.py and docs/migration_guide.md of yandex/YaFSDP; the
// checkpointed layers follow its patches/transformers.diff. The class is imported from
// ya_fsdp.ya_fsdp, which all releases have; since 2026 the package itself does not offer it.
#include <fmt/core.h>

#include <string>

#include "cli/export/settings.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

void set_strategy(const Plan& plan, const Ranks& ranks, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  if (info_of(plan.strategy).zero_stage() < 2) {
    throw Error(
        fmt::format("--format is 'yafsdp', but the plan's strategy is {}, which YaFSDP has "
                    "nothing like; expected a strategy that shards parameters or gradients.",
                    name_of(plan.strategy)));
  }
  run.strategy =
      info_of(plan.strategy).zero_stage() == 3 ? Strategy::kYafsdp : Strategy::kYafsdpZero2;
  if (run.strategy != plan.strategy) {
    settings.lost("strategy",
                  fmt::format("{} becomes YaFSDP with zero_stage {}", name_of(plan.strategy),
                              info_of(plan.strategy).zero_stage()));
  }
  if (ranks.replicate > 1) {
    settings.lost("shard_group",
                  fmt::format("{} of {} GPUs; YaFSDP shards over its whole "
                              "data_parallel_process_group and does not reduce between groups, so "
                              "all {} share one copy",
                              ranks.shard, plan.gpus, plan.gpus));
    run.shard_group = 0;
  }
}

/// The checkpointed layers as a Python expression over `layers`.
PythonSource checkpointed_expression(const Plan& plan) {
  if (plan.ckpt_stride == 1) return "layers[:num_ckpt_layers]";
  return PythonSource::format("layers[::{}][:num_ckpt_layers]", plan.ckpt_stride);
}

void remark_knobs(const Plan& plan, std::int64_t layers, bool tied, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const std::int64_t k = checkpointed_layers(plan);
  if (k > 0 && plan.recompute != Recompute::kFull) {
    settings.lost("recompute", fmt::format("{}; the settings recompute the whole of each of {}",
                                           recompute_name(plan), of_layers(k, layers)));
    run.recompute = Recompute::kFull;
    run.pieces = 0;
  }
  remark_gather_window(plan, "YaFSDP", "its two buffers rotate, one unit ahead", settings);
  if (plan.master_dtype != DType::kFp32 || plan.moment_dtype != DType::kFp32) {
    settings.lost("moment_dtype", "YaFSDP's shards, and the moments with them, are fp32");
    run.master_dtype = run.moment_dtype = DType::kFp32;
  }
  if (plan.offload == Offload::kOptimizer) {
    settings.lost("offload", "YaFSDP offloads nothing");
    run.offload = Offload::kNone;
  }
  if (tied) {
    settings.lost("model",
                  "head and embedding share one weight, which YaFSDP's units cannot: the settings "
                  "wrap the embedding alone; untie them, or try it on few layers first");
  }
}

Bare norm_class(const ModuleNames& names) {
  return bare(names.norm_class.empty() ? "torch.nn.LayerNorm" : names.norm_class);
}

/// The same with release 2.
PythonSource fully_shard_text(const Plan& plan, const ModuleNames& names, bool tied) {
  PythonSource units = PythonSource::format("model.{}, ", bare(names.embedding));
  if (!names.positions.empty()) units += PythonSource::format("model.{}, ", bare(names.positions));
  units += "*layers";
  if (!tied) units += PythonSource::format(", model.{}", bare(names.head));
  PythonSource text = PythonSource::format(
      "\n\ndef fully_shard_model(model, mesh=None):\n"
      "    \"\"\"Release 2 of YaFSDP in place of shard() and checkpoint().\"\"\"\n"
      "    from ya_fsdp import MixedPrecisionPolicy, fully_shard\n\n"
      "    layers = list(model.{})\n",
      bare(names.layers));
  if (checkpointed_layers(plan) > 0) {
    text += PythonSource::format(
        "    chosen = set({})\n"
        "    apply_activation_checkpointing(model, check_fn=lambda m: m in chosen)\n"
        "    layers = list(model.{})\n",
        checkpointed_expression(plan), bare(names.layers));
  }
  return text + PythonSource::format(
                    "    settings = dict(\n"
                    "        mesh=mesh,\n"
                    "        reshard_after_forward=zero_stage == 3,\n"
                    "        mp_policy=MixedPrecisionPolicy(\n"
                    "            param_dtype=param_dtype,\n"
                    "            reduce_dtype=param_dtype if bit16_reduce_scatter else "
                    "torch.float32,\n"
                    "        ),\n"
                    "    )\n"
                    "    for unit in [{}]:\n"
                    "        fully_shard(unit, **settings)\n"
                    "    return fully_shard(model, **settings)\n",
                    units);
}

PythonSource module_text(const Plan& plan, const Ranks& ranks, const ModuleNames& names, bool tied,
                         int stage) {
  PythonSource text =
      "import torch\n"
      "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (\n"
      "    apply_activation_checkpointing,\n"
      ")\n";
  if (!names.norm_class.empty()) {
    text += PythonSource::format("from transformers.models.{0}.modeling_{0} import {1}\n",
                                 bare(names.package), bare(names.norm_class));
  }
  text += "\n";
  text += PythonSource::format(
      "num_nodes = {}\n"
      "gpus_per_node = {}\n"
      "zero_stage = {}\n"
      "param_dtype = torch.{}\n"
      "bit16_reduce_scatter = {}\n"
      "num_ckpt_layers = {}\n"
      "per_device_batch_size = {}\n"
      "gradient_accumulation_steps = {}\n"
      "seq_len = {}\n"
      "attn_implementation = \"{}\"\n\n\n",
      ranks.nodes, ranks.per_node, stage, plan.param_dtype == DType::kBf16 ? "bfloat16" : "float32",
      plan.reduce_dtype == DType::kBf16 ? "True" : "False", checkpointed_layers(plan),
      plan.micro_batch, plan.grad_accum, plan.seq_len,
      plan.attention == AttentionKind::kFlash ? "flash_attention_2" : "eager");
  text += PythonSource::format(
      "def shard(model, device):\n"
      "    from ya_fsdp.ya_fsdp import YaFSDP\n\n"
      "    return YaFSDP(\n"
      "        model,\n"
      "        zero_stage=zero_stage,\n"
      "        param_dtype=param_dtype,\n"
      "        modules_to_wrap_with_names=[\n"
      "            (model.{0}, \"{0}\"),\n",
      bare(names.embedding));
  if (!names.positions.empty())
    text += PythonSource::format("            (model.{0}, \"{0}\"),\n", bare(names.positions));
  text += PythonSource::format(
      "            *((m, f\"{0}.{{i}}\") for i, m in enumerate(model.{0})),\n", bare(names.layers));
  if (!tied) text += PythonSource::format("            (model.{0}, \"{0}\"),\n", bare(names.head));
  text += PythonSource::format(
      "        ],\n"
      "        rogue_layer_norm_modules_with_names={{model.{0}: \"{0}\"}},\n"
      "        layer_norm_module_cls={1},\n"
      "        gradient_accumulation_steps=gradient_accumulation_steps,\n"
      "        bit16_reduce_scatter=bit16_reduce_scatter,\n"
      "        sync_module_states=True,\n"
      "        device_id=device,\n"
      "    )\n",
      bare(names.last_norm), norm_class(names));
  if (checkpointed_layers(plan) > 0) {
    text += PythonSource::format(
        "\n\ndef checkpoint(model, sharded):\n"
        "    \"\"\"After shard(): each layer is then inside a unit of YaFSDP.\"\"\"\n"
        "    layers = list(model.{})\n"
        "    chosen = {{next(unit.children()) for unit in {}}}\n"
        "    apply_activation_checkpointing(sharded, check_fn=lambda m: m in chosen)\n",
        bare(names.layers), checkpointed_expression(plan));
  }
  return text + fully_shard_text(plan, names, tied);
}

}  // namespace

TrainerSettings yafsdp_settings(const sim::Job& inputs, const Plan& plan) {
  refuse_model_parallel(plan, "YaFSDP");
  TrainerSettings settings;
  settings.as_run = plan;
  const Ranks ranks = ranks_of(inputs, plan);
  set_strategy(plan, ranks, settings);
  remark_stack(plan, "YaFSDP with Transformers", "hf-eager", settings);
  remark_knobs(plan, inputs.model.layers, inputs.model.tied_head, settings);
  settings.body = module_text(plan, ranks, module_names(inputs.model), inputs.model.tied_head,
                              info_of(plan.strategy).zero_stage());
  return settings;
}

}  // namespace shardwright::cli
