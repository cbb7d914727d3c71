// SPDX-License-Identifier: Apache-2.0
// torchtitan's settings, for the release of today and for the last ones that read TOML.
//
// 0.3 reads no file of its own format: its config is a Python function that --module and --config
// name, so a module with one such function is written. It changes the config of the flavor in
// torchtitan/models/*/config_registry.py; field names from torchtitan/config/configs.py. 0.2 (to
// 0.2.2) reads a TOML job config: names from its torchtitan/config/job_config.py. [training],
// [parallelism] and [compile] are the same in both; activation checkpointing is a class in 0.3,
// which has lost "every n-th layer". main after 0.3.0 (b5bcd76) counts tokens where the releases
// count sequences, and a pipeline's micro-batches instead of their size.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "cli/export/settings.h"
#include "cli/export/torchtitan_options.h"
#include "sim/core/base/error.h"
#include "sim/core/features.h"

namespace shardwright::cli {
namespace {

struct Flavor {
  std::string_view family;
  std::int64_t layers, hidden, vocab;
  std::string_view name, flavor;
  std::string_view function;  // of 0.3's config_registry; the flavor is set where it is another's
};

// torchtitan/models/{llama3,qwen3,deepseek_v3,gpt_oss}/{__init__,config_registry}.py
constexpr std::array<Flavor, 14> kFlavors = {{
    {"llama", 32, 4096, 128256, "llama3", "8B", "llama3_8b"},
    {"llama", 80, 8192, 128256, "llama3", "70B", "llama3_70b"},
    {"llama", 126, 16384, 128256, "llama3", "405B", "llama3_405b"},
    {"qwen3", 28, 1024, 151936, "qwen3", "0.6B", "qwen3_0_6b"},
    {"qwen3", 28, 2048, 151936, "qwen3", "1.7B", "qwen3_1_7b"},
    {"qwen3", 36, 2560, 151936, "qwen3", "4B", "qwen3_1_7b"},
    {"qwen3", 36, 4096, 151936, "qwen3", "8B", "qwen3_1_7b"},
    {"qwen3", 40, 5120, 151936, "qwen3", "14B", "qwen3_14b"},
    {"qwen3", 64, 5120, 151936, "qwen3", "32B", "qwen3_32b"},
    {"qwen3_moe", 48, 2048, 151936, "qwen3", "30B-A3B", "qwen3_30b_a3b"},
    {"deepseek_v2", 27, 2048, 102400, "deepseek_v3", "16B", "deepseek_v3_16b"},
    {"deepseek_v3", 61, 7168, 129280, "deepseek_v3", "671B", "deepseek_v3_671b"},
    {"gpt_oss", 24, 2880, 201088, "gpt_oss", "20b", "gpt_oss_20b"},
    {"gpt_oss", 36, 2880, 201088, "gpt_oss", "120b", "gpt_oss_120b"},
}};

const Flavor* flavor_of(const Model& model) {
  for (const Flavor& f : kFlavors) {
    if (f.family == model.family && f.layers == model.layers && f.hidden == model.hidden &&
        f.vocab == model.vocab) {
      return &f;
    }
  }
  return nullptr;
}

void remark_missing_flavor(const Model& model, std::string_view where, TrainerSettings& settings) {
  settings.lost("model",
                fmt::format("torchtitan has no flavor with {} layers of {} and a vocabulary of {}: "
                            "add one and name it {}",
                            model.layers, model.hidden, model.vocab, where));
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

/// Whether torchtitan's per-operator policy stands for what the plan recomputes; then it applies to
/// all layers.
bool selects_operators(const Plan& plan, std::int64_t layers, TrainerSettings& settings) {
  if (plan.recompute != Recompute::kSelectiveOp && plan.recompute != Recompute::kPieces)
    return false;
  const std::int64_t k = checkpointed_layers(plan);
  if (plan.recompute == Recompute::kPieces) {
    settings.lost("recompute",
                  fmt::format("torchtitan cannot recompute just {}; it keeps the outputs of "
                              "attention and of every second GEMM, per operator",
                              recompute_name(plan)));
  }
  if (k < layers) {
    settings.lost("ckpt_layers",
                  fmt::format("{} recompute; torchtitan applies the per-operator policy to all",
                              of_layers(k, layers)));
  }
  Plan& run = settings.as_run;
  run.recompute = Recompute::kSelectiveOp;
  run.pieces = 0;
  run.ckpt_layers = layers;
  run.ckpt_stride = 1;
  return true;
}

void checkpoint_all(const Plan& plan, std::int64_t layers, std::string_view knows,
                    TrainerSettings& settings) {
  const std::int64_t k = checkpointed_layers(plan);
  settings.as_run.ckpt_stride = 1;
  settings.as_run.ckpt_layers = layers;
  if (k == layers) return;
  settings.lost("ckpt_layers",
                fmt::format("{} are checkpointed; torchtitan knows {}, so all are: less memory "
                            "than planned, {} layers more to recompute",
                            of_layers(k, layers), knows, layers - k));
}

/// The policy as an object of 0.3.
const char* checkpoint_policy(const Plan& plan, std::int64_t layers, TrainerSettings& settings) {
  if (checkpointed_layers(plan) == 0) return "None";
  if (selects_operators(plan, layers, settings)) return "SelectiveAC.Config()";
  checkpoint_all(plan, layers, "all or none since 0.3", settings);
  return "FullAC.Config()";
}

/// The [activation_checkpoint] section of 0.2, which counts layers from 1 and checkpoints those
/// whose number its selective_ac_option divides (activation_checkpoint.py, _apply_layer_sac).
TomlSource activation_checkpoint_section(const Plan& plan, std::int64_t layers,
                                         TrainerSettings& settings) {
  const std::int64_t k = checkpointed_layers(plan);
  const TomlSource section = "[activation_checkpoint]\n";
  if (k == 0) return section + "mode = \"none\"\n";
  if (selects_operators(plan, layers, settings)) {
    return section + "mode = \"selective\"\nselective_ac_option = \"op\"\n";
  }
  const std::int64_t every = layers / k;
  if (every == 1) {
    checkpoint_all(plan, layers, "all or every n-th", settings);
    return section + "mode = \"full\"\n";
  }
  Plan& run = settings.as_run;
  run.ckpt_stride = every;
  run.ckpt_layers = layers / every;
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
  return section +
         TomlSource::format("mode = \"selective\"\nselective_ac_option = \"{}\"\n", every);
}

TitanOptions training_options(const Plan& plan, TrainerSettings& settings) {
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
  const auto dtype = [](DType d) { return d == DType::kBf16 ? "\"bfloat16\"" : "\"float32\""; };
  const auto number = [](std::int64_t value) { return JsonSource::format("{}", value); };
  const std::int64_t replicas = plan.gpus / plan.parallel.replica();
  const char* section = "training";
  return {{section, "seq_len", number(plan.seq_len)},
          {section, "local_batch_size",
           number(plan.micro_batch * (plan.parallel.pp > 1 ? plan.grad_accum : 1))},
          {section, "global_batch_size", number(replicas * plan.micro_batch * plan.grad_accum),
           JsonSource::format("{} {} x {} x {} micro-batches", replicas,
                              replicas == plan.gpus ? "GPUs" : "replicas", plan.micro_batch,
                              plan.grad_accum)},
          {section, "max_norm", "1.0"},
          {section, "dtype", dtype(all_bf16 ? DType::kBf16 : DType::kFp32)},
          {section, "mixed_precision_param", dtype(plan.param_dtype)},
          {section, "mixed_precision_reduce", dtype(DType::kFp32)},
          {section, "enable_cpu_offload", plan.offload == Offload::kOptimizer ? "true" : "false"}};
}

TitanOptions parallelism_options(const Ranks& ranks, const Plan& run) {
  if (shards_for_titan(run)) return {};
  const char* section = "parallelism";
  TitanOptions options = {
      {section, "data_parallel_replicate_degree", JsonSource::format("{}", ranks.replicate)},
      {section, "data_parallel_shard_degree", JsonSource::format("{}", ranks.shard)}};
  if (ranks.shard > 1) {
    options.push_back({section, "fsdp_reshard_after_forward",
                       run.strategy == Strategy::kFsdp2NoReshard ? "\"never\"" : "\"always\""});
  }
  for (const char* degree :
       {"tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree"})
    options.push_back({section, degree, "1"});
  return options;
}

TitanOptions compile_options(const Plan& plan) {
  return {{"compile", "enable", plan.stack == "torch-compile" ? "true" : "false"},
          {"compile", "components", "[\"model\", \"loss\"]"}};
}

/// What both releases are told alike, with the remarks about it.
TitanOptions common_options(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings) {
  settings.as_run = plan;
  set_parallelism(plan, settings);
  const bool compiled = plan.stack == "torch-compile";
  remark_stack(plan, "torchtitan", compiled ? "torch-compile" : "torch-eager", settings);
  if (plan.numerics.lora > 0) {
    throw Error(
        fmt::format("lora is {}, which torchtitan has for debugging alone, expected "
                    "--format megatron-bridge",
                    plan.numerics.lora));
  }
  const Ranks ranks = ranks_of(inputs, plan);
  if (ranks.shard > 1) {
    remark_gather_window(plan, "torchtitan",
                         "FSDP2 gathers one layer ahead; more takes code "
                         "(set_modules_to_forward_prefetch)",
                         settings);
  }
  if (plan.attention == AttentionKind::kEager) {
    settings.lost("attention", "eager; torchtitan runs scaled_dot_product_attention");
    settings.as_run.attention = AttentionKind::kFlash;
  }
  TitanOptions options = training_options(plan, settings);
  for (const TitanOptions& more :
       {parallelism_options(ranks, settings.as_run), compile_options(plan)}) {
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

JsonSource remark_of(const TitanOption& option) {
  return option.comment.text().empty() ? "" : "  # " + option.comment;
}

TomlSource toml_of(const TitanOptions& options) {
  TomlSource text;
  std::string_view section;
  for (const TitanOption& option : options) {
    if (option.section != section) {
      text += TomlSource::format("{}[{}]\n", section.empty() ? "" : "\n", bare(option.section));
      section = option.section;
    }
    text += TomlSource::format("{} = {}{}\n", bare(option.key), option.value, remark_of(option));
  }
  return text;
}

PythonSource python_of(const TitanOptions& options) {
  PythonSource text;
  for (const TitanOption& option : options) {
    const std::string& json = option.value.text();
    const PythonSource value = json == "true"    ? "True"
                               : json == "false" ? "False"
                                                 : PythonSource(option.value);
    text += PythonSource::format("    config.{}.{} = {}{}\n", bare(option.section),
                                 bare(option.key), value, remark_of(option));
  }
  return text;
}

/// The flavor's config as the exported function takes it.
PythonSource flavor_lines(const Model& model, TrainerSettings& settings) {
  const Flavor* flavor = flavor_of(model);
  if (flavor == nullptr) {
    remark_missing_flavor(model, "where plan() is called", settings);
    return "\n\ndef plan(flavor):\n    config = flavor()  # a function of your config_registry\n";
  }
  PythonSource text =
      PythonSource::format("from torchtitan.models.{}.config_registry import {} as flavor\n",
                           bare(flavor->name), bare(flavor->function));
  std::string suffix(flavor->flavor);
  std::replace_if(
      suffix.begin(), suffix.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool another = flavor->function != fmt::format("{}_{}", flavor->name, suffix);
  if (another)
    text += PythonSource::format("from torchtitan.models.{} import model_registry\n",
                                 bare(flavor->name));
  text += "\n\ndef plan():\n    config = flavor()\n";
  if (another)
    text += PythonSource::format("    config.model_spec = model_registry({})\n",
                                 string_literal(flavor->flavor));
  return text;
}

/// The options of a release as main has them since it counts tokens.
TitanOptions in_tokens(const TitanOptions& options, const Plan& plan) {
  const auto tokens = [&](const JsonSource& sequences) {
    return JsonSource::format("{} * {}", sequences, plan.seq_len);
  };
  TitanOptions counted;
  for (TitanOption option : options) {
    if (option.key == "seq_len") option.key = "max_context_length";
    if (option.key == "local_batch_size") {
      option.key = "num_tokens_per_microbatch_per_dp_rank";
      option.value = tokens(JsonSource::format("{}", plan.micro_batch));
    }
    if (option.key == "global_batch_size") {
      option.key = "num_tokens_per_train_step";
      option.value = tokens(option.value);
    }
    if (option.key == "pipeline_parallel_microbatch_size") {
      option.key = "num_pp_microbatches";
      option.value = JsonSource::format("{}", plan.grad_accum);
    }
    counted.push_back(std::move(option));
  }
  // CUDA graphs, its default, go with neither.
  if (plan.parallel.pp > 1 || plan.parallel.ep > 1)
    counted.push_back({"training", "disable_cuda_graphs", "true"});
  return counted;
}

TrainerSettings module_settings(const sim::Job& inputs, const Plan& plan, bool counts_tokens) {
  TrainerSettings settings;
  TitanOptions options = common_options(inputs, plan, settings);
  const TitanOptions layout = titan_parallelism(inputs, plan, settings);
  options.insert(options.end(), layout.begin(), layout.end());
  if (counts_tokens) options = in_tokens(options, plan);
  const Ranks ranks = ranks_of(inputs, plan);
  const char* const policy = checkpoint_policy(plan, inputs.model.layers, settings);
  PythonSource body;
  if (const std::string_view name(policy); name != "None") {
    body = PythonSource::format("from torchtitan.distributed.activation_checkpoint import {}\n",
                                bare(name.substr(0, name.find('.'))));
  }
  settings.body =
      body + flavor_lines(inputs.model, settings) + python_of(options) +
      PythonSource::format("    config.activation_checkpoint = {}\n    return config\n", policy);
  if (plan.loss_chunks > 1) {
    std::erase_if(settings.remarks, [](const Remark& one) { return one.knob == "loss_chunks"; });
    settings.as_run.loss_chunks = plan.loss_chunks;
    settings.said("loss_chunks",
                  "torchtitan computes the loss of its flavors in chunks, as the plan does");
  } else {
    settings.said("loss",
                  "torchtitan computes the loss of its flavors in chunks: less memory "
                  "than is predicted here");
  }
  settings.said("gpus", fmt::format("save it as shardwright_plan.py and start with PYTHONPATH=. "
                                    "torchrun --nnodes={} --nproc_per_node={} -m torchtitan.train "
                                    "--module shardwright_plan --config plan",
                                    ranks.nodes, ranks.per_node));
  return settings;
}

}  // namespace

TrainerSettings torchtitan_settings(const sim::Job& inputs, const Plan& plan) {
  return module_settings(inputs, plan, false);
}

TrainerSettings torchtitan_main_settings(const sim::Job& inputs, const Plan& plan) {
  return module_settings(inputs, plan, true);
}

TrainerSettings torchtitan_toml_settings(const sim::Job& inputs, const Plan& plan) {
  if (shards_for_titan(plan)) {
    refuse_beyond(plan, {}, "the TOML of torchtitan 0.2 is written for data parallelism only",
                  "--format torchtitan");
  }
  TrainerSettings settings;
  const TitanOptions options = common_options(inputs, plan, settings);
  const Ranks ranks = ranks_of(inputs, plan);
  TomlSource body;
  if (const Flavor* flavor = flavor_of(inputs.model)) {
    body = TomlSource::format("[model]\nname = {}\nflavor = {}\n", string_literal(flavor->name),
                              string_literal(flavor->flavor));
  } else {
    remark_missing_flavor(inputs.model, "in [model]", settings);
    body = "# [model]\n# name = \"...\"\n# flavor = \"...\"\n";
  }
  settings.body = body + "\n" + toml_of(options) + "\n" +
                  activation_checkpoint_section(plan, inputs.model.layers, settings);
  settings.said("gpus", fmt::format("start with torchrun --nnodes={} --nproc_per_node={} -m "
                                    "torchtitan.train --job.config_file=FILE",
                                    ranks.nodes, ranks.per_node));
  return settings;
}

}  // namespace shardwright::cli
