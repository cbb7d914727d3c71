// SPDX-License-Identifier: Apache-2.0
// torchtitan: the TOML job config of 0.2, the config functions of 0.3, whose sections are the same
// but for activation checkpointing and the model, and those of main after 0.3, which counts tokens
// where the others count sequences, and a pipeline's micro-batches instead of their size. Names and
// defaults from its torchtitan/config/job_config.py (0.2.2) and torchtitan/config/configs.py
// (0.3.0, and b5bcd76 of main).
//
// 0.3 reads no file of its own format: its config is a Python function that --module and --config
// name, so a module with one such function is written, which changes the config of the flavor in
// torchtitan/models/*/config_registry.py. A pipeline's stages are given as lists of module names
// (module_fqns_per_model_part), so that they hold what the plan says and not what torchtitan would
// choose; a rank's local batch is then all micro-batches of a step, which the schedule cuts.
#include <fmt/core.h>

#include <algorithm>
#include <array>
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
#include "sim/core/features.h"
#include "sim/program/stages.h"

namespace shardwright::cli {
namespace {

struct Flavor {
  std::string_view family;
  std::int64_t layers, hidden, vocab;
  std::string_view name, flavor;
  std::string_view function;  // of 0.3's config_registry; the flavor is set where it is another's
  std::string_view model;     // the shipped one; empty: there is none
};

// torchtitan/models/{llama3,qwen3,deepseek_v3,gpt_oss}/{__init__,config_registry}.py
constexpr std::array<Flavor, 15> kFlavors = {{
    {"llama", 32, 4096, 128256, "llama3", "8B", "llama3_8b", "llama-3.1-8b"},
    {"llama", 80, 8192, 128256, "llama3", "70B", "llama3_70b", "llama-3.1-70b"},
    {"llama", 126, 16384, 128256, "llama3", "405B", "llama3_405b", "llama-3.1-405b"},
    {"qwen3", 28, 1024, 151936, "qwen3", "0.6B", "qwen3_0_6b", "qwen3-0.6b"},
    {"qwen3", 28, 2048, 151936, "qwen3", "1.7B", "qwen3_1_7b", "qwen3-1.7b"},
    {"qwen3", 36, 2560, 151936, "qwen3", "4B", "qwen3_1_7b", "qwen3-4b"},
    {"qwen3", 36, 4096, 151936, "qwen3", "8B", "qwen3_1_7b", "qwen3-8b"},
    {"qwen3", 40, 5120, 151936, "qwen3", "14B", "qwen3_14b", "qwen3-14b"},
    {"qwen3", 64, 5120, 151936, "qwen3", "32B", "qwen3_32b", "qwen3-32b"},
    {"qwen3_moe", 48, 2048, 151936, "qwen3", "30B-A3B", "qwen3_30b_a3b", "qwen3-30b-a3b"},
    {"", 0, 0, 0, "qwen3", "235B-A22B", "", "qwen3-235b-a22b"},  // no function of its own
    {"deepseek_v2", 27, 2048, 102400, "deepseek_v3", "16B", "deepseek_v3_16b", ""},
    {"deepseek_v3", 61, 7168, 129280, "deepseek_v3", "671B", "deepseek_v3_671b", "deepseek-v3"},
    {"gpt_oss", 24, 2880, 201088, "gpt_oss", "20b", "gpt_oss_20b", ""},
    {"gpt_oss", 36, 2880, 201088, "gpt_oss", "120b", "gpt_oss_120b", ""},
}};

/// "model_registry(8B)" -> "8B".
std::string argument_of(const std::string& call) {
  const std::size_t open = call.find('('), close = call.rfind(')');
  if (open == call.npos || close == call.npos || close < open) return "";
  return call.substr(open + 1, close - open - 1);
}

void take_model(SettingBox& box, ImportedConfig& to) {
  std::string family, flavor;
  if (const auto name = box.take("model.name")) family = lower_case(*name);
  if (const auto word = box.take("model.flavor")) flavor = lower_case(*word);
  if (const auto call = box.take("model_spec")) flavor = lower_case(argument_of(*call));
  // The command line of 0.3: --module llama3 --config llama3_8b.
  if (const auto module = box.take("module")) family = lower_case(*module);
  if (const auto config = box.take("config")) {
    box.pass("begins_with");
    to.assumed.push_back(fmt::format(
        "it begins with {} of torchtitan, whose module is not beside it: what that sets is not "
        "read",
        *config));
    const std::string word = lower_case(*config);
    if (!family.empty() && word.starts_with(family + "_")) flavor = word.substr(family.size() + 1);
  }
  if (family.empty() && flavor.empty()) return;
  std::string found;
  for (const Flavor& known : kFlavors) {
    if (known.model.empty() || lower_case(std::string(known.flavor)) != flavor) continue;
    if (!family.empty() && known.name != family) continue;
    if (!found.empty()) return;  // 8B of several families
    found = std::string(known.model);
  }
  if (found.empty()) return;
  to.model = found;
  box.took(fmt::format("model {}", found), to);
}

void take_schedule(SettingBox& box, ImportedConfig& to) {
  const auto name = box.take("parallelism.pipeline_parallel_schedule");
  if (!name || to.knobs.parallel.pp.value_or(1) == 1) return;
  const std::string word = lower_case(*name);
  for (const PipelineInfo& schedule : kPipelineInfos) {
    const bool same = !schedule.pytorch.empty() && word == lower_case(schedule.pytorch);
    if (same) return box.set_knob("pp-schedule", std::string(schedule.name), to);
  }
  // The nearest one: PyTorch's runs several chunks a stage.
  if (word == "interleavedzerobubble") return box.set_knob("pp-schedule", "zb1p", to);
  to.not_taken.push_back({box.key(), *name, "no schedule of that kind is predicted"});
}

void take_parallelism(SettingBox& box, ImportedConfig& to) {
  const auto degree = [&](const char* name, const char* knob) {
    const std::string key = fmt::format("parallelism.{}_parallel_degree", name);
    if (const auto count = box.take_count(key); count && *count > 1)
      box.set_knob(knob, fmt::format("{}", *count), to);
  };
  degree("tensor", "tp");
  degree("pipeline", "pp");
  degree("context", "cp");
  degree("expert", "ep");
  degree("expert_tensor", "etp");
  take_schedule(box, to);
  if (const auto async = box.take_switch(
          {"compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"});
      async.value_or(false)) {
    box.set_knob("tp-overlap", "async", to);
  }
  if (const auto sp = box.take_switch("parallelism.enable_sequence_parallel");
      sp && to.knobs.parallel.tp.value_or(1) > 1) {
    box.set_knob("sp", *sp ? "on" : "off", to);
  }
  if (const auto copies = box.take_count("parallelism.data_parallel_replicate_degree")) {
    to.replicate = *copies;
    box.took(copies_words(*copies), to);
  }
  if (const auto ranks = box.take_count("parallelism.data_parallel_shard_degree", -1)) {
    if (*ranks > 0) to.shard = *ranks;
    box.took(*ranks > 0 ? fmt::format("sharded over {} ranks", *ranks)
                        : std::string("sharded over all ranks"),
             to);
  }
  const auto reshard = box.take("parallelism.fsdp_reshard_after_forward");
  const bool never =
      reshard.value_or("default") == "never" ||
      (reshard.value_or("default") == "default" && to.knobs.parallel.pp.value_or(1) > 1);
  to.strategy = never ? Strategy::kFsdp2NoReshard : Strategy::kFsdp2;
  if (reshard) box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  if (const auto parts = box.take_section("parallelism.module_fqns_per_model_part");
      parts > 0 && to.knobs.parallel.pp.value_or(1) > 1) {
    const auto chunks = static_cast<std::int64_t>(parts) / *to.knobs.parallel.pp;
    if (chunks > 1) to.knobs.parallel.virtual_stages = chunks;
    to.assumed.push_back(
        "module_fqns_per_model_part is read as equal stages (--pp-layout says other ones)");
  } else if (const auto kind = to.knobs.parallel.pp_schedule;
             kind && (*kind == PipelineKind::kInterleaved || *kind == PipelineKind::kZb1p ||
                      *kind == PipelineKind::kZbv)) {
    to.knobs.parallel.virtual_stages = 2;
    to.assumed.push_back("looped schedules have two stages a rank, torchtitan's default");
  }
  box.pass(
      "enable_fsdp_symm_mem spmd_backend context_parallel_load_balancer "
      "context_parallel_ptrr_mask_key pipeline_parallel_first_stage_less_layers "
      "pipeline_parallel_last_stage_less_layers disable_loss_parallel",
      "parallelism.");
  if (to.replicate > 1) to.strategy = to.shard.value_or(0) == 1 ? Strategy::kDdp : Strategy::kHsdp;
  if (to.strategy == Strategy::kHsdp) {
    // torchtitan's runs on FSDP2.
    to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    if (never) {
      to.not_taken.push_back({"parallelism.fsdp_reshard_after_forward", reshard.value_or("default"),
                              "hsdp is predicted with resharding"});
    }
  }
}

/// A pipeline cuts the local batch into micro-batches of its own.
void take_pipeline_batch(SettingBox& box, ImportedConfig& to) {
  const auto micro_batches = box.take_count("parallelism.num_pp_microbatches");
  if (to.knobs.parallel.pp.value_or(1) == 1) return;
  const std::int64_t local = to.knobs.micro_batch.value_or(1);
  if (micro_batches || box.has("training.max_context_length")) {
    if (!to.global_batch) to.knobs.grad_accum = micro_batches.value_or(1);
    if (micro_batches) box.took(fmt::format("grad_accum {}", *micro_batches), to);
    return;
  }
  const std::int64_t micro =
      box.take_count("parallelism.pipeline_parallel_microbatch_size").value_or(1);
  if (local % micro != 0) box.fail("a size that divides training.local_batch_size");
  to.knobs.micro_batch = micro;
  if (!to.global_batch) to.knobs.grad_accum = local / micro;
  for (TakenSetting& taken : to.taken) {
    if (taken.key == "training.local_batch_size")
      taken.meaning = fmt::format("micro_batch {}, {} of them", micro, local / micro);
  }
}

void take_checkpointing(SettingBox& box, ImportedConfig& to) {
  // 0.3: a class.
  if (const auto policy = box.take("activation_checkpoint")) {
    box.take_section("activation_checkpoint");
    if (policy->find("FullAC") != policy->npos) {
      box.set_knob("ckpt-layers", "all", to);
    } else if (policy->find("SelectiveAC") != policy->npos) {
      box.set_knob("recompute", "selective-op", to);
    } else {
      to.not_taken.push_back({box.key(), *policy, "no policy of that name is predicted"});
    }
    return;
  }
  if (box.key() == "activation_checkpoint") return;  // None
  if (!box.has("activation_checkpoint.mode") && box.file().find(".py") != std::string::npos) {
    // A function of 0.3 or main that does not say it, nor begins with one that does.
    if (box.has("config") || box.has("begins_with")) return;
    to.knobs.recompute = Recomputation{Recompute::kSelectiveOp, 0};
    to.assumed.push_back(
        "activation_checkpoint is not said: SelectiveAC, torchtitan's default since 0.3");
    return;
  }
  std::string mode = "selective", option = "2";
  const auto said = box.take("activation_checkpoint.mode");
  const bool off = box.key() == "activation_checkpoint.mode" && !said;
  if (said) mode = lower_case(*said);
  if (off) return;
  if (!said) {
    to.assumed.push_back(
        "activation_checkpoint.mode is not said: taken as none, though releases of torchtitan have "
        "other defaults; --ckpt-layers changes it");
    return;
  }
  if (mode == "full") return box.set_knob("ckpt-layers", "all", to);
  if (mode != "selective") {
    to.not_taken.push_back({box.key(), mode, "no policy of that name is predicted"});
    return;
  }
  if (const auto word = box.take("activation_checkpoint.selective_ac_option")) option = *word;
  if (option == "op") return box.set_knob("recompute", "selective-op", to);
  const auto every = parse_int64(option);
  if (!every || *every < 1) box.fail("op, or a whole number of at least 1");
  box.set_knob("ckpt-layers", "all", to);
  if (*every == 1) return;
  to.ckpt_stride = *every;
  last_of(to.taken, box.file()).meaning = fmt::format("every {}th layer is checkpointed", *every);
}

void take_titan_optimizer(SettingBox& box, ImportedConfig& to) {
  constexpr const char* kInBackward = "gradients are kept until the optimizer runs here";
  box.leave("optimizer.early_step_in_backward", kInBackward, to);
  std::vector<std::string> names;
  for (const char* key : {"optimizer.name", "optimizer"}) {
    const auto word = box.take(key);
    if (word && word->find("InBackward") != word->npos) box.leave({key}, kInBackward, to);
    if (word && word->find("Container") == word->npos) names.push_back(*word);
  }
  for (std::size_t i = 0;; ++i) {
    const auto word = box.take(fmt::format("optimizer.param_groups[{}].optimizer_name", i));
    if (!word) break;
    names.push_back(*word);
  }
  for (const std::string& name : names) {
    const std::string word = lower_case(name);
    if (word.find("muon") != word.npos) return box.set_knob("optimizer", "muon", to);
    if (word.find("adam") != word.npos) continue;
    to.not_taken.push_back({box.key(), name, "predicted as AdamW"});
  }
}

/// What changes the layers of a flavor: 8-bit and 4-bit products, adapters.
void take_converters(SettingBox& box, ImportedConfig& to) {
  std::vector<std::string> found = box.take_list("model_spec.converters");
  for (std::string& word : box.take_list("model.converters")) found.push_back(word);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string word = lower_case(found[i]);
    const std::string at = fmt::format("model_spec.converters[{}]", i);
    if (word.find("nvfp4") != word.npos) {
      box.set_knob("precision", "nvfp4", to);
    } else if (word.find("mxfp8") != word.npos || word.find("mx") == 0) {
      box.set_knob("precision", "fp8", to);
      box.set_knob("fp8-recipe", "mxfp8", to);
    } else if (word.find("float8") != word.npos) {
      box.set_knob("precision", "fp8", to);
      const auto recipe = box.take(at + ".recipe_name");
      if (recipe) box.set_knob("fp8-recipe", recipe->find("row") == 0 ? "rowwise" : *recipe, to);
    } else if (word.find("lora") != word.npos) {
      if (!box.take_knob({at + ".rank"}, "lora", to)) to.knobs.parallel.lora = 8;
      box.take_section(at + ".target_modules");
      to.assumed.push_back("all projections have adapters of LoRA in the prediction");
    } else {
      static_cast<void>(box.take(
          {fmt::format("model_spec.converters[{}]", i), fmt::format("model.converters[{}]", i)}));
      box.fail("a converter of Float8, MXFP8, NVFP4 or LoRA");
    }
    if (box.take_section(at + ".fqns") > 0) {
      to.not_taken.push_back(
          {at + ".fqns", "a list", "all products of the layers are predicted in that precision"});
    }
  }
}

/// main after 0.3 counts the tokens of a rank's micro-batch, packed into contexts.
void take_tokens(SettingBox& box, ImportedConfig& to) {
  const bool has_length = box.take_knob("training.max_context_length", "seq-len", to);
  if (!has_length) to.knobs.seq_len = 2048;
  const std::int64_t context = *to.knobs.seq_len;
  std::int64_t tokens = 16384;
  if (const auto given = box.take_count("training.num_tokens_per_microbatch_per_dp_rank")) {
    tokens = *given;
    if (tokens >= context && tokens % context != 0)
      box.fail(fmt::format("a multiple of the {} tokens of training.max_context_length", context));
    box.took(fmt::format("micro_batch {}", std::max<std::int64_t>(1, tokens / context)), to);
  } else {
    to.assumed.push_back(
        "training.num_tokens_per_microbatch_per_dp_rank is not said: 16384, torchtitan's default");
  }
  if (!has_length)
    to.assumed.push_back("training.max_context_length is not said: 2048, torchtitan's default");
  if (tokens < context) {
    to.knobs.seq_len = tokens;
    to.assumed.push_back(fmt::format(
        "a micro-batch of {} tokens is shorter than max_context_length: taken as one sequence",
        tokens));
  }
  to.knobs.micro_batch = std::max<std::int64_t>(1, tokens / context);
  if (const auto all = box.take_count("training.num_tokens_per_train_step", -1); all && *all > 0) {
    const std::int64_t sequence = *to.knobs.seq_len;
    if (*all % sequence != 0)
      box.fail(fmt::format("a multiple of the {} tokens of a sequence", sequence));
    to.global_batch = *all / sequence;
    box.took(fmt::format("global batch {}", *to.global_batch), to);
  }
}

void take_sequences(SettingBox& box, ImportedConfig& to) {
  if (!box.take_knob("training.seq_len", "seq-len", to)) {
    to.knobs.seq_len = 2048;
    to.assumed.push_back("training.seq_len is not said: 2048, torchtitan's default");
  }
  if (!box.take_knob("training.local_batch_size training.batch_size", "micro-batch", to)) {
    to.knobs.micro_batch = 8;
    to.assumed.push_back("training.local_batch_size is not said: 8, torchtitan's default");
  }
  if (const auto global = box.take_count("training.global_batch_size", -1); global && *global > 0) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
}

void take_loss(SettingBox& box, ImportedConfig& to) {
  const auto loss = box.take("loss");
  if (loss && loss->find("Chunked") != loss->npos) {
    const std::int64_t pieces = box.take_count("loss.num_chunks").value_or(8);
    box.pass("loss");
    box.set_knob("loss-chunks", fmt::format("{}", pieces), to);
  } else if (loss && loss->find("CrossEntropy") == loss->npos) {
    to.not_taken.push_back({"loss", *loss, "predicted as cross entropy"});
  }
  box.take_section("loss");
}

void take_training(SettingBox& box, ImportedConfig& to) {
  const bool counts_tokens = box.has("training.num_tokens_per_microbatch_per_dp_rank") ||
                             box.has("training.max_context_length") ||
                             box.has("training.num_tokens_per_train_step") ||
                             box.has("parallelism.num_pp_microbatches");
  if (counts_tokens) {
    take_tokens(box, to);
  } else {
    take_sequences(box, to);
  }
  const auto dtype = [&](const char* key, const char* knob) {
    if (const auto word = box.take(key))
      box.set_knob(knob, *word == "bfloat16" ? "bf16" : *word == "float32" ? "fp32" : *word, to);
  };
  dtype("training.mixed_precision_param", "param-dtype");
  dtype("training.mixed_precision_reduce", "reduce-dtype");
  if (const auto word = box.take("training.dtype"); word && *word == "bfloat16") {
    box.set_knob("master-dtype", "bf16", to);
    box.set_knob("moment-dtype", "bf16", to);
  }
  take_loss(box, to);
  take_titan_optimizer(box, to);
  take_converters(box, to);
  box.leave("training.enable_cpu_offload", "it moves parameters and gradients, too", to);
}

void take_compiler(SettingBox& box, ImportedConfig& to) {
  const std::vector<std::string> parts = box.take_list("compile.components");
  const auto said = box.take_switch("compile.enable training.compile");
  const bool compiles = said.value_or(false);
  const auto has = [&](std::string_view part) {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  to.stack = compiles && has("model") ? "torch-compile" : "torch-eager";
  if (said) box.took("framework " + to.stack, to);
  if (compiles && has("model") != has("loss")) {
    to.not_taken.push_back({"compile.components", first_of(parts, box.file()),
                            has("model") ? "the loss is predicted compiled, too"
                                         : "the loss is predicted as PyTorch's own kernels"});
  }
  box.pass("compile compile.backend");
}

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
  recompute_all_layers(settings.as_run, Recompute::kSelectiveOp, layers);
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

/// One option; Python and TOML write values alike but for booleans.
struct TitanOption {
  std::string_view section, key;
  JsonSource value;
  JsonSource comment{};
};
using TitanOptions = std::vector<TitanOption>;

/// Its default is never with a pipeline, else always.
TitanOption reshard_option(const Plan& run) {
  const bool reshards = info_of(run.strategy).reshards;
  return {"parallelism", "fsdp_reshard_after_forward", reshards ? "\"always\"" : "\"never\""};
}

[[noreturn]] void not_in_torchtitan(std::string_view knob, std::string_view value,
                                    std::string_view expected) {
  throw Error(
      fmt::format("{} is {}, which torchtitan does not have, expected {}", knob, value, expected));
}

/// PyTorch's names (torch/distributed/pipelining/schedules.py).
std::string_view schedule_class(PipelineKind kind) {
  const PipelineInfo& schedule = info_of(kind);
  if (schedule.pytorch.empty()) {
    not_in_torchtitan(
        "pp_schedule", schedule.name,
        pipeline_schedules_with([](const PipelineInfo& info) { return !info.pytorch.empty(); }));
  }
  return schedule.pytorch;
}

/// Modules of every part of the model, as Python lists.
JsonSource parts_of_model(const Model& model, const Plan& plan, const Stack& stack) {
  JsonSource parts;
  for (const sim::ChunkContent& chunk : sim::partition_layers(model, plan, stack)) {
    JsonSource modules;
    const auto add = [&modules](const JsonSource& module) {
      modules += modules.text().empty() ? module : ", " + module;
    };
    if (chunk.embedding) add("\"tok_embeddings\"");
    for (std::int64_t i = 0; i < chunk.layers; ++i)
      add(JsonSource::format("\"layers.{}\"", chunk.first_layer + i));
    if (chunk.extra_predictions > 0) {
      throw Error(
          "multi-token prediction is in a pipeline of its own in torchtitan, expected pp 1");
    }
    if (chunk.head) {
      add("\"norm\"");
      add("\"lm_head\"");
    }
    parts += JsonSource::format("        [{}],\n", modules);
  }
  return JsonSource::format("[\n{}    ]", parts);
}

void add_titan_pipeline(const sim::Job& inputs, const Plan& plan, TitanOptions& options) {
  const char* section = "parallelism";
  const PipelineKind kind = plan.parallel.schedule();
  options.push_back({section, "pipeline_parallel_schedule", string_literal(schedule_class(kind))});
  options.push_back(
      {section, "pipeline_parallel_microbatch_size", JsonSource::format("{}", plan.micro_batch)});
  options.push_back({section, "module_fqns_per_model_part",
                     parts_of_model(inputs.model, plan, inputs.profile.stack)});
}

void remark_context(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings) {
  const auto usual = from_word<ContextComm>(inputs.profile.stack.parallel.cp_comm);
  const ContextComm comm = plan.parallel.cp_comm.value_or(usual.value_or(ContextComm::kRing));
  if (comm == ContextComm::kAllGather) return;
  settings.lost("cp_comm",
                fmt::format("{}; torchtitan 0.3 gathers keys and values", name_of(comm)));
  settings.as_run.parallel.cp_comm = ContextComm::kAllGather;
}

void remark_experts(const Plan& plan, TrainerSettings& settings) {
  const Parallelism& p = plan.parallel;
  if (p.etp > 1) not_in_torchtitan("etp", fmt::format("{}", p.etp), "1");
  if (p.ep_overlap.value_or(false)) not_in_torchtitan("ep_overlap", "on", "off");
  if (p.expert_capacity) {
    not_in_torchtitan("expert_capacity", fmt::format("{}", *p.expert_capacity), "none");
  }
  if (p.dispatcher && *p.dispatcher != Dispatcher::kAllToAll) {
    settings.lost("dispatcher",
                  fmt::format("{}; it is chosen with the flavor (model_registry), which is left "
                              "with all-to-alls",
                              name_of(*p.dispatcher)));
    settings.as_run.parallel.dispatcher = Dispatcher::kAllToAll;
  }
}

void remark_numerics(const Plan& plan, TrainerSettings& settings) {
  const Numerics& n = plan.numerics;
  Numerics& run = settings.as_run.numerics;
  if (n.precision != Precision::kBf16) {
    settings.lost("precision",
                  fmt::format("{}; in torchtitan converters are a part of the flavor, as in "
                              "model_registry(..., converters=[Float8LinearConverter.Config()]); "
                              "the settings multiply in bf16",
                              name_of(n.precision)));
    run.precision = Precision::kBf16;
    run.fp8_recipe.reset();
    run.fp8_params = false;
  }
  if (n.optimizer != Optimizer::kAdamw) {
    settings.lost("optimizer", fmt::format("{}; the flavor's AdamW is left", name_of(n.optimizer)));
    run.optimizer = Optimizer::kAdamw;
  }
  if (plan.offload == Offload::kActivations)
    not_in_torchtitan("offload", offload_name(plan), "none");
}

bool shards_for_titan(const Plan& plan) {
  return plan.parallel.replica() > 1 || plan.parallel.ep > 1 || !plan.parallel.plain() ||
         !plan.numerics.plain();
}

TitanOptions titan_parallelism(const sim::Job& inputs, const Plan& plan,
                               TrainerSettings& settings) {
  if (!shards_for_titan(plan)) return {};
  const Parallelism& p = plan.parallel;
  const std::int64_t dp = plan.gpus / p.replica();
  const bool replicates = info_of(settings.as_run.strategy).shards == Sharded::kNothing;
  std::int64_t shard = replicates ? 1 : dp;
  if (!replicates && plan.shard_group > 0)
    shard = std::max<std::int64_t>(1, plan.shard_group / p.cp);
  if (p.rank_order != Parallelism::kUsualOrder) {
    not_in_torchtitan("rank_order", p.rank_order, Parallelism::kUsualOrder);
  }
  const TensorOverlap overlap =
      p.tp_overlap.value_or(profiles::usual_overlap(inputs.profile.stack, inputs.model));
  if (p.tp > 1 && overlap == TensorOverlap::kUserbuffers) {
    not_in_torchtitan("tp_overlap", "userbuffers", "none or async");
  }
  const char* section = "parallelism";
  const auto number = [](std::int64_t value) { return JsonSource::format("{}", value); };
  TitanOptions options = {
      {section, "data_parallel_replicate_degree", number(dp / shard)},
      {section, "data_parallel_shard_degree", number(shard)},
      {section, "tensor_parallel_degree", number(p.tp)},
      {section, "enable_sequence_parallel", p.sequence_parallel() || p.tp == 1 ? "true" : "false"},
      {section, "pipeline_parallel_degree", number(p.pp)},
      {section, "context_parallel_degree", number(p.cp)},
      {section, "expert_parallel_degree", number(p.ep)}};
  if (shard > 1) options.push_back(reshard_option(settings.as_run));
  if (p.tp > 1 && overlap == TensorOverlap::kAsync) {
    options.push_back({"compile", "enable_async_tensor_parallel", "true"});
  }
  if (p.pp > 1) add_titan_pipeline(inputs, plan, options);
  if (p.cp > 1) remark_context(inputs, plan, settings);
  if (inputs.model.is_moe()) remark_experts(plan, settings);
  remark_numerics(plan, settings);
  return options;
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
  if (ranks.shard > 1) options.push_back(reshard_option(run));
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
  std::string suffix = lower_case(std::string(flavor->flavor));
  std::replace_if(
      suffix.begin(), suffix.end(), [](char c) { return c == '.' || c == '-'; }, '_');
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

bool is_torchtitan(const SettingBox& box) {
  return box.has("training") &&
         (box.has("parallelism") || box.has("activation_checkpoint") ||
          box.has("training.local_batch_size") || box.has("training.seq_len") ||
          box.has("training.max_context_length") || box.has("model_spec") || box.has("config"));
}

void read_torchtitan(SettingBox& box, ImportedConfig& to) {
  take_model(box, to);
  take_training(box, to);
  take_parallelism(box, to);
  take_pipeline_batch(box, to);
  take_checkpointing(box, to);
  take_compiler(box, to);
  box.pass(
      "training parallelism training.enable training.gc_debug model_spec.attn_backend "
      "model_spec.tp_gemm_backend training.disable_cuda_graphs");
  if (const auto comm = box.take("model_spec.moe_comm_backend")) {
    const std::string word = lower_case(*comm);
    if (word == "deepep" || word == "hybridep") box.set_knob("dispatcher", word, to);
    if (word.find("minimal") != word.npos)
      to.not_taken.push_back({box.key(), *comm, "predicted as all-to-alls"});
  }
  if (const auto processes = box.take_count("nproc_per_node")) {
    const std::int64_t nodes = box.take_count("nnodes").value_or(1);
    to.gpus = *processes * nodes;
    box.took(fmt::format("{} GPUs", *to.gpus), to);
  }
}

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
