// SPDX-License-Identifier: Apache-2.0
// torchtitan: the TOML job config of 0.2, the config functions of 0.3, whose sections are the same
// but for activation checkpointing and the model, and those of main after 0.3, which counts tokens
// where the others count sequences. Names and defaults from its torchtitan/config/job_config.py
// (0.2.2) and torchtitan/config/configs.py (0.3.0, and b5bcd76 of main).
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/config/imported.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

struct TitanModel {
  std::string_view family, flavor, model;
};
// torchtitan/models/*/__init__.py: flavors whose sizes are those of a shipped model.
constexpr std::array<TitanModel, 12> kTitanModels = {{
    {"llama3", "8b", "llama-3.1-8b"},
    {"llama3", "70b", "llama-3.1-70b"},
    {"llama3", "405b", "llama-3.1-405b"},
    {"qwen3", "0.6b", "qwen3-0.6b"},
    {"qwen3", "1.7b", "qwen3-1.7b"},
    {"qwen3", "4b", "qwen3-4b"},
    {"qwen3", "8b", "qwen3-8b"},
    {"qwen3", "14b", "qwen3-14b"},
    {"qwen3", "32b", "qwen3-32b"},
    {"qwen3", "30b-a3b", "qwen3-30b-a3b"},
    {"qwen3", "235b-a22b", "qwen3-235b-a22b"},
    {"deepseek_v3", "671b", "deepseek-v3"},
}};

/// "model_registry(8B)" -> "8B".
std::string argument_of(const std::string& call) {
  const std::size_t open = call.find('('), close = call.rfind(')');
  if (open == call.npos || close == call.npos || close < open) return "";
  return call.substr(open + 1, close - open - 1);
}

void take_model(SettingBox& box, ImportedConfig& to) {
  std::string family, flavor;
  if (const auto name = box.take({"model.name"})) family = lower_case(*name);
  if (const auto word = box.take({"model.flavor"})) flavor = lower_case(*word);
  if (const auto call = box.take({"model_spec"})) flavor = lower_case(argument_of(*call));
  // The command line of 0.3: --module llama3 --config llama3_8b.
  if (const auto module = box.take({"module"})) family = lower_case(*module);
  if (const auto config = box.take({"config"})) {
    static_cast<void>(box.take({"begins_with"}));
    to.assumed.push_back(fmt::format(
        "it begins with {} of torchtitan, whose module is not beside it: what that sets is not "
        "read",
        *config));
    const std::string word = lower_case(*config);
    if (!family.empty() && word.starts_with(family + "_")) flavor = word.substr(family.size() + 1);
  }
  if (family.empty() && flavor.empty()) return;
  std::string found;
  for (const TitanModel& known : kTitanModels) {
    if (known.flavor != flavor || (!family.empty() && known.family != family)) continue;
    if (!found.empty()) return;  // 8B of several families
    found = std::string(known.model);
  }
  if (found.empty()) return;
  to.model = found;
  box.took(fmt::format("model {}", found), to);
}

void take_schedule(SettingBox& box, ImportedConfig& to) {
  const auto name = box.take({"parallelism.pipeline_parallel_schedule"});
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
    if (const auto count = box.take_count({key}); count && *count > 1)
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
  if (const auto sp = box.take_switch({"parallelism.enable_sequence_parallel"});
      sp && to.knobs.parallel.tp.value_or(1) > 1) {
    box.set_knob("sp", *sp ? "on" : "off", to);
  }
  if (const auto copies = box.take_count({"parallelism.data_parallel_replicate_degree"})) {
    to.replicate = *copies;
    box.took(copies_words(*copies), to);
  }
  if (const auto ranks = box.take_count({"parallelism.data_parallel_shard_degree"}, -1)) {
    if (*ranks > 0) to.shard = *ranks;
    box.took(*ranks > 0 ? fmt::format("sharded over {} ranks", *ranks)
                        : std::string("sharded over all ranks"),
             to);
  }
  const auto reshard = box.take({"parallelism.fsdp_reshard_after_forward"});
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
  const auto micro_batches = box.take_count({"parallelism.num_pp_microbatches"});
  if (to.knobs.parallel.pp.value_or(1) == 1) return;
  const std::int64_t local = to.knobs.micro_batch.value_or(1);
  if (micro_batches || box.has("training.max_context_length")) {
    if (!to.global_batch) to.knobs.grad_accum = micro_batches.value_or(1);
    if (micro_batches) box.took(fmt::format("grad_accum {}", *micro_batches), to);
    return;
  }
  const std::int64_t micro =
      box.take_count({"parallelism.pipeline_parallel_microbatch_size"}).value_or(1);
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
  if (const auto policy = box.take({"activation_checkpoint"})) {
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
  const auto said = box.take({"activation_checkpoint.mode"});
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
  if (const auto word = box.take({"activation_checkpoint.selective_ac_option"})) option = *word;
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
  box.leave({"optimizer.early_step_in_backward"}, kInBackward, to);
  std::vector<std::string> names;
  for (const char* key : {"optimizer.name", "optimizer"}) {
    const auto word = box.take({key});
    if (word && word->find("InBackward") != word->npos) box.leave({key}, kInBackward, to);
    if (word && word->find("Container") == word->npos) names.push_back(*word);
  }
  for (std::size_t i = 0;; ++i) {
    const auto word = box.take({fmt::format("optimizer.param_groups[{}].optimizer_name", i)});
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
      const auto recipe = box.take({at + ".recipe_name"});
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
  const bool has_length = box.take_knob({"training.max_context_length"}, "seq-len", to);
  if (!has_length) to.knobs.seq_len = 2048;
  const std::int64_t context = *to.knobs.seq_len;
  std::int64_t tokens = 16384;
  if (const auto given = box.take_count({"training.num_tokens_per_microbatch_per_dp_rank"})) {
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
  if (const auto all = box.take_count({"training.num_tokens_per_train_step"}, -1);
      all && *all > 0) {
    const std::int64_t sequence = *to.knobs.seq_len;
    if (*all % sequence != 0)
      box.fail(fmt::format("a multiple of the {} tokens of a sequence", sequence));
    to.global_batch = *all / sequence;
    box.took(fmt::format("global batch {}", *to.global_batch), to);
  }
}

void take_sequences(SettingBox& box, ImportedConfig& to) {
  if (!box.take_knob({"training.seq_len"}, "seq-len", to)) {
    to.knobs.seq_len = 2048;
    to.assumed.push_back("training.seq_len is not said: 2048, torchtitan's default");
  }
  if (!box.take_knob({"training.local_batch_size", "training.batch_size"}, "micro-batch", to)) {
    to.knobs.micro_batch = 8;
    to.assumed.push_back("training.local_batch_size is not said: 8, torchtitan's default");
  }
  if (const auto global = box.take_count({"training.global_batch_size"}, -1);
      global && *global > 0) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
}

void take_loss(SettingBox& box, ImportedConfig& to) {
  const auto loss = box.take({"loss"});
  if (loss && loss->find("Chunked") != loss->npos) {
    const std::int64_t pieces = box.take_count({"loss.num_chunks"}).value_or(8);
    static_cast<void>(box.take({"loss"}));
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
    if (const auto word = box.take({key}))
      box.set_knob(knob, *word == "bfloat16" ? "bf16" : *word == "float32" ? "fp32" : *word, to);
  };
  dtype("training.mixed_precision_param", "param-dtype");
  dtype("training.mixed_precision_reduce", "reduce-dtype");
  if (const auto word = box.take({"training.dtype"}); word && *word == "bfloat16") {
    box.set_knob("master-dtype", "bf16", to);
    box.set_knob("moment-dtype", "bf16", to);
  }
  take_loss(box, to);
  take_titan_optimizer(box, to);
  take_converters(box, to);
  box.leave({"training.enable_cpu_offload"}, "it moves parameters and gradients, too", to);
}

void take_compiler(SettingBox& box, ImportedConfig& to) {
  const std::vector<std::string> parts = box.take_list("compile.components");
  const auto said = box.take_switch({"compile.enable", "training.compile"});
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
  static_cast<void>(box.take({"compile", "compile.backend"}));
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
  if (const auto comm = box.take({"model_spec.moe_comm_backend"})) {
    const std::string word = lower_case(*comm);
    if (word == "deepep" || word == "hybridep") box.set_knob("dispatcher", word, to);
    if (word.find("minimal") != word.npos)
      to.not_taken.push_back({box.key(), *comm, "predicted as all-to-alls"});
  }
  if (const auto processes = box.take_count({"nproc_per_node"})) {
    const std::int64_t nodes = box.take_count({"nnodes"}).value_or(1);
    to.gpus = *processes * nodes;
    box.took(fmt::format("{} GPUs", *to.gpus), to);
  }
}

}  // namespace shardwright::cli
