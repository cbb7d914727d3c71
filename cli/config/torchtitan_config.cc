// SPDX-License-Identifier: Apache-2.0
// torchtitan: the TOML job config of 0.2 and the config functions of 0.3, whose sections are the
// same but for activation checkpointing and the model. Names and defaults from its
// torchtitan/config/job_config.py (0.2.2) and torchtitan/config/configs.py (0.3.0).
#include <fmt/core.h>

#include <array>
#include <string_view>

#include "cli/config/imported.h"
#include "sim/core/parse_number.h"
#include "sim/core/words.h"

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
  if (const auto async = box.take_switch({"parallelism.enable_async_tensor_parallel"});
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
  if (to.knobs.parallel.pp.value_or(1) == 1) return;
  const std::int64_t local = to.knobs.micro_batch.value_or(1);
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
    if (policy->find("FullAC") != policy->npos) {
      box.set_knob("ckpt-layers", "all", to);
    } else if (policy->find("SelectiveAC") != policy->npos) {
      box.set_knob("recompute", "selective-op", to);
    } else {
      to.not_taken.push_back({box.key(), *policy, "no policy of that name is predicted"});
    }
    return;
  }
  if (!box.key().empty() && box.key() == "activation_checkpoint") return;  // None
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
  to.taken.back().meaning = fmt::format("every {}th layer is checkpointed", *every);
}

void take_training(SettingBox& box, ImportedConfig& to) {
  if (!box.take_knob({"training.seq_len"}, "seq-len", to)) {
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
  if (const auto loss = box.take({"loss"}); loss && loss->find("Chunked") != loss->npos)
    to.not_taken.push_back({box.key(), *loss, "give --loss-chunks for a loss in pieces"});
  static_cast<void>(box.take({"loss.loss_fn"}));
  static_cast<void>(box.take({"loss.loss_fn.global_vocab_size"}));
  box.leave({"training.enable_cpu_offload"}, "it moves parameters and gradients, too", to);
}

}  // namespace

bool is_torchtitan(const SettingBox& box) {
  return box.has("training") &&
         (box.has("parallelism") || box.has("activation_checkpoint") ||
          box.has("training.local_batch_size") || box.has("training.seq_len"));
}

void read_torchtitan(SettingBox& box, ImportedConfig& to) {
  take_model(box, to);
  take_training(box, to);
  take_parallelism(box, to);
  take_pipeline_batch(box, to);
  take_checkpointing(box, to);
  const auto compiles = box.take_switch({"compile.enable", "training.compile"});
  to.stack = compiles.value_or(false) ? "torch-compile" : "torch-eager";
  if (compiles) box.took("stack " + to.stack, to);
  static_cast<void>(box.take({"compile.components[0]"}));
  static_cast<void>(box.take({"compile.components[1]"}));
  box.leave({"compile.components"}, "model and loss are compiled together", to);
  if (const auto processes = box.take_count({"nproc_per_node"})) {
    const std::int64_t nodes = box.take_count({"nnodes"}).value_or(1);
    to.gpus = *processes * nodes;
    box.took(fmt::format("{} GPUs", *to.gpus), to);
  }
}

}  // namespace shardwright::cli
