// SPDX-License-Identifier: Apache-2.0
// torchtitan's job config. Option names from torchtitan/config/job_config.py of its TOML releases
// (v0.2); the Python configs that follow them (torchtitan/config/configs.py: TrainingConfig,
// ParallelismConfig, ActivationCheckpointConfig) kept the names.
#include <fmt/core.h>

#include <array>
#include <string>
#include <utility>

#include "cli/export/settings.h"

namespace shardwright::cli {
namespace {

struct Flavor {
  std::string_view family;
  std::int64_t layers, hidden, vocab;
  std::string_view name, flavor;
};

// torchtitan/models/{llama3,qwen3}/__init__.py
constexpr std::array<Flavor, 9> kFlavors = {{
    {"llama", 32, 4096, 128256, "llama3", "8B"},
    {"llama", 80, 8192, 128256, "llama3", "70B"},
    {"llama", 126, 16384, 128256, "llama3", "405B"},
    {"qwen3", 28, 1024, 151936, "qwen3", "0.6B"},
    {"qwen3", 28, 2048, 151936, "qwen3", "1.7B"},
    {"qwen3", 36, 2560, 151936, "qwen3", "4B"},
    {"qwen3", 36, 4096, 151936, "qwen3", "8B"},
    {"qwen3", 40, 5120, 151936, "qwen3", "14B"},
    {"qwen3", 64, 5120, 151936, "qwen3", "32B"},
}};

std::string model_section(const Model& model, TrainerSettings& settings) {
  for (const Flavor& f : kFlavors) {
    if (f.family == model.family && f.layers == model.layers && f.hidden == model.hidden &&
        f.vocab == model.vocab) {
      return fmt::format("[model]\nname = \"{}\"\nflavor = \"{}\"\n", f.name, f.flavor);
    }
  }
  settings.lost("model",
                fmt::format("torchtitan has no flavor with {} layers of {} and a vocabulary of {}: "
                            "add one and name it in [model]",
                            model.layers, model.hidden, model.vocab));
  return "# [model]\n# name = \"...\"\n# flavor = \"...\"\n";
}

void set_parallelism(const Plan& plan, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const std::string_view name = name_of(plan.strategy);
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.hybrid) {
    settings.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    settings.said("strategy", "hsdp runs on FSDP2 (fully_shard over a two-dimensional mesh)");
    return;
  }
  if (strategy.replicates()) return;
  if (strategy.software == Software::kFsdp2 && !strategy.second_shard) return;
  run.strategy = nearest_fsdp2(plan.strategy);
  settings.lost(
      "strategy",
      fmt::format("torchtitan has no {}; the settings run FSDP2 (fully_shard) {} resharding after "
                  "forward, which copies parameters out of each gather and gradients into each "
                  "reduction",
                  name, run.strategy == Strategy::kFsdp2 ? "with" : "without"));
}

/// The [activation_checkpoint] section. torchtitan counts layers from 1 and checkpoints those whose
/// number its selective_ac_option divides (activation_checkpoint.py, _apply_layer_sac).
std::string activation_checkpoint_section(const Plan& plan, std::int64_t layers,
                                          TrainerSettings& settings) {
  const std::int64_t k = checkpointed_layers(plan);
  Plan& run = settings.as_run;
  std::string section = "[activation_checkpoint]\n";
  if (k == 0) return section + "mode = \"none\"\n";
  if (plan.recompute == Recompute::kSelectiveOp || plan.recompute == Recompute::kPieces) {
    if (plan.recompute == Recompute::kPieces) {
      settings.lost("recompute",
                    fmt::format("torchtitan cannot recompute just {}; it keeps the outputs of "
                                "attention and of every second matrix product, per operator",
                                recompute_name(plan)));
    }
    if (k < layers) {
      settings.lost("ckpt_layers",
                    fmt::format("{} recompute; torchtitan applies the per-operator policy to all",
                                of_layers(k, layers)));
    }
    run.recompute = Recompute::kSelectiveOp;
    run.pieces = 0;
    run.ckpt_layers = layers;
    run.ckpt_stride = 1;
    return section + "mode = \"selective\"\nselective_ac_option = \"op\"\n";
  }
  const std::int64_t every = layers / k;
  run.ckpt_stride = every;
  run.ckpt_layers = layers / every;
  if (every == 1) {
    if (k < layers) {
      settings.lost("ckpt_layers",
                    fmt::format("{} are checkpointed; torchtitan knows all or every n-th, so all "
                                "are: less memory than planned, {} layers more to recompute",
                                of_layers(k, layers), layers - k));
    }
    return section + "mode = \"full\"\n";
  }
  if (run.ckpt_layers != k) {
    settings.lost("ckpt_layers",
                  fmt::format("{} are checkpointed; torchtitan knows only every n-th, and every {} "
                              "checkpoints {}",
                              of_layers(k, layers), every, run.ckpt_layers));
  } else {
    settings.said("ckpt_layers", fmt::format("{} are checkpointed: in torchtitan the layers {}, "
                                             "{}, ... counted from 1, not the first {}",
                                             of_layers(k, layers), every, 2 * every, k));
  }
  return section + fmt::format("mode = \"selective\"\nselective_ac_option = \"{}\"\n", every);
}

std::string training_section(const Plan& plan, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  if (plan.reduce_dtype != DType::kFp32) {
    settings.lost("reduce_dtype",
                  "bf16; torchtitan's mixed_precision_reduce takes float32 only: twice the bytes "
                  "in reductions");
    run.reduce_dtype = DType::kFp32;
  }
  const bool all_bf16 = plan.master_dtype == DType::kBf16 && plan.moment_dtype == DType::kBf16;
  if (!all_bf16 && (plan.master_dtype != DType::kFp32 || plan.moment_dtype != DType::kFp32)) {
    settings.lost("moment_dtype",
                  fmt::format("master weights in {} with moments in {}; torchtitan keeps both in "
                              "training.dtype, here float32",
                              name_of(plan.master_dtype), name_of(plan.moment_dtype)));
    run.master_dtype = run.moment_dtype = DType::kFp32;
  }
  if (plan.offload == Offload::kOptimizer) {
    settings.lost("offload",
                  "the optimizer alone is offloaded; torchtitan's enable_cpu_offload also moves "
                  "parameters and gradients");
  }
  const auto dtype = [](DType d) { return d == DType::kBf16 ? "bfloat16" : "float32"; };
  return fmt::format(
      "[training]\n"
      "seq_len = {}\n"
      "local_batch_size = {}\n"
      "global_batch_size = {}  # {} GPUs x {} x {} micro-steps\n"
      "max_norm = 1.0\n"
      "dtype = \"{}\"\n"
      "mixed_precision_param = \"{}\"\n"
      "mixed_precision_reduce = \"float32\"\n"
      "enable_cpu_offload = {}\n",
      plan.seq_len, plan.micro_batch, plan.gpus * plan.micro_batch * plan.grad_accum, plan.gpus,
      plan.micro_batch, plan.grad_accum, dtype(all_bf16 ? DType::kBf16 : DType::kFp32),
      dtype(plan.param_dtype), plan.offload == Offload::kOptimizer);
}

std::string parallelism_section(const Ranks& ranks, const Plan& run) {
  std::string section = fmt::format(
      "[parallelism]\n"
      "data_parallel_replicate_degree = {}\n"
      "data_parallel_shard_degree = {}\n",
      ranks.replicate, ranks.shard);
  if (ranks.shard > 1) {
    section += fmt::format("fsdp_reshard_after_forward = \"{}\"\n",
                           run.strategy == Strategy::kFsdp2NoReshard ? "never" : "always");
  }
  return section +
         "tensor_parallel_degree = 1\n"
         "pipeline_parallel_degree = 1\n"
         "context_parallel_degree = 1\n";
}

}  // namespace

TrainerSettings torchtitan_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  settings.as_run = plan;
  set_parallelism(plan, settings);
  const bool compiled = plan.stack == "torch-compile";
  remark_stack(plan, "torchtitan", compiled ? "torch-compile" : "torch-eager", settings);
  if (ranks_of(inputs, plan).shard > 1) {
    remark_gather_window(plan, "torchtitan",
                         "FSDP2 gathers one layer ahead; more takes code "
                         "(set_modules_to_forward_prefetch)",
                         settings);
  }
  if (plan.attention == AttentionKind::kEager) {
    settings.lost("attention", "eager; torchtitan runs scaled_dot_product_attention");
    settings.as_run.attention = AttentionKind::kFlash;
  }
  const Ranks ranks = ranks_of(inputs, plan);
  settings.body =
      model_section(inputs.model, settings) + "\n" + training_section(plan, settings) + "\n" +
      parallelism_section(ranks, settings.as_run) + "\n" +
      activation_checkpoint_section(plan, inputs.model.layers, settings) + "\n" +
      fmt::format("[compile]\nenable = {}\ncomponents = [\"model\", \"loss\"]\n", compiled);
  settings.said("gpus", fmt::format("start with torchrun --nnodes={} --nproc_per_node={} -m "
                                    "torchtitan.train --job.config_file=FILE",
                                    ranks.nodes, ranks.per_node));
  return settings;
}

}  // namespace shardwright::cli
