// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's config. Option names from deepspeed/runtime/zero/config.py, runtime/config.py,
// runtime/precision_config.py and www.deepspeed.ai/docs/config-json.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "cli/trainers/fine_tuning.h"
#include "cli/trainers/rows.h"

namespace shardwright::cli {
namespace {

/// "auto" is what Transformers' Trainer fills in from its own arguments, whose default today is
/// bf16; without a section DeepSpeed trains in fp32.
void take_zero_types(SettingBox& box, ImportedConfig& to) {
  bool half = false;
  for (const char* type : {"bf16", "bfloat16"}) {
    const std::string key = fmt::format("{}.enabled", type);
    if (box.is_auto(key) && !half) {
      half = true;
      to.assumed.push_back(
          fmt::format("{} is auto: up to the trainer, taken as bf16 (--param-dtype)", key));
    }
    if (box.is_on(key)) {
      half = true;
      box.took("param_dtype bf16", to);
    }
  }
  bool fp16 = box.is_on("fp16.enabled");
  if (fp16) box.set_knob("precision", "fp16", to);
  if (box.is_auto("fp16.enabled") && !half) {
    half = true;
    to.assumed.push_back(
        "fp16.enabled is auto: up to the trainer, taken as bf16 (--param-dtype, --precision fp16)");
  }
  if (!half && !fp16) {
    to.assumed.push_back(
        "neither bf16 nor fp16 is enabled: fp32, DeepSpeed's default (--param-dtype)");
  }
  for (const char* section : {"fp16.", "bf16."}) {
    box.pass(
        "auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
        "consecutive_hysteresis min_loss_scale",
        section);
  }
  box.leave("fp16.fp16_master_weights_and_grads", "master weights are predicted in fp32", to);
  to.knobs.param_dtype = half || fp16 ? DType::kBf16 : DType::kFp32;
  to.knobs.reduce_dtype = to.knobs.param_dtype;
}

/// Two of the three sizes give the third (deepspeed/runtime/config.py).
void take_zero_batch(SettingBox& box, ImportedConfig& to) {
  if (const auto global = box.take_count("train_batch_size")) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
  const bool accumulates = box.take_knob("gradient_accumulation_steps", "grad-accum", to);
  const bool has_micro = box.take_knob("train_micro_batch_size_per_gpu", "micro-batch", to);
  if (!accumulates && box.is_auto("gradient_accumulation_steps") && !to.global_batch) {
    to.assumed.push_back(
        "gradient_accumulation_steps is auto: up to the trainer, taken as 1 (--grad-accum)");
  }
  if (!has_micro && to.global_batch) {
    to.micro_batch_follows = true;
    to.assumed.push_back(
        fmt::format("the micro-batch is train_batch_size over the data-parallel ranks{}",
                    accumulates ? " and gradient_accumulation_steps" : ""));
  } else if (!has_micro) {
    to.assumed.push_back(fmt::format(
        "train_micro_batch_size_per_gpu is {}: up to the script, taken as 1 (--micro-batch)",
        box.is_auto("train_micro_batch_size_per_gpu") ? "auto" : "not said"));
  } else if (accumulates && to.global_batch) {
    const std::int64_t at_once = *to.knobs.micro_batch * *to.knobs.grad_accum;
    if (*to.global_batch % at_once != 0) {
      box.pass("train_batch_size");
      box.fail(fmt::format("a multiple of the {} sequences that a rank takes in a step", at_once));
    }
    const std::int64_t ranks = *to.global_batch / at_once;
    to.assumed.push_back(
        fmt::format("its three batch sizes are of {} data-parallel ranks; on others the global "
                    "batch is kept",
                    ranks));
    if (!box.has("tensor_parallel")) to.gpus = ranks;
  }
}

void take_zero_stage(SettingBox& box, ImportedConfig& to) {
  to.stack = "hf-eager";
  to.strategy = zero_strategy(box.take_count("zero_optimization.stage", 0).value_or(0));
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
}

void take_reductions(SettingBox& box, ImportedConfig& to) {
  if (const auto word = box.take("communication_data_type"))
    box.set_knob("reduce-dtype", *word == "bfp16" || *word == "bfloat16" ? "bf16" : *word, to);
}

void take_zero_offload(SettingBox& box, ImportedConfig& to) {
  take_optimizer_device(box, "zero_optimization.offload_optimizer.device", to);
}

void take_sums(SettingBox& box, ImportedConfig& to) {
  if (const auto word = box.take("data_types.grad_accum_dtype");
      word && word->starts_with("bf") != (to.knobs.reduce_dtype == DType::kBf16))
    to.not_taken.push_back({box.key(), *word, "gradients are added up as they are reduced"});
  const bool beside = box.is_on("zero_optimization.overlap_comm");
  if ((to.strategy == Strategy::kZero1 || to.strategy == Strategy::kZero2) && !beside) {
    to.assumed.push_back(
        "gradients are reduced while backward runs in the prediction, though overlap_comm is off");
  }
}

void take_zero_checkpointing(SettingBox& box, ImportedConfig& to) {
  if (box.take_count("activation_checkpointing.number_checkpoints", 0).value_or(0) > 0) {
    box.set_knob("ckpt-layers", "all", to);
    to.assumed.push_back(
        "activation_checkpointing only says how: whether layers are checkpointed is "
        "up to the model's code, taken as all (--ckpt-layers)");
  } else {
    to.assumed.push_back(
        "whether layers are checkpointed is up to the model's code: taken as none "
        "(--ckpt-layers all)");
  }
}

void take_deepspeed_optimizer(SettingBox& box, ImportedConfig& to) {
  if (const auto type = box.take("optimizer.type")) {
    const std::string name = upper_case(*type);
    if (name == "MUON" || name == "SGD") {
      box.set_knob("optimizer", name == "MUON" ? "muon" : "sgd", to);
    } else if (name == "ADAMW8BIT" || name == "ADAM8BIT") {
      box.set_knob("optimizer", "adamw-8bit", to);
    } else if (name != "ADAM" && name != "ADAMW" && name != "FUSEDADAM" && name != "CPUADAM") {
      to.not_taken.push_back({box.key(), *type, "predicted as AdamW"});
    }
  }
}

void assume_length(SettingBox&, ImportedConfig& to) {
  to.assumed.push_back("the sequence length is up to the script (--seq-len)");
}

void set_zero_strategy(const Plan& plan, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.replicates() || strategy.software == Software::kDeepSpeed) return;
  if (!strategy.reshards) {
    run.strategy = Strategy::kZero2;
    settings.lost("strategy",
                  fmt::format("{} shards parameters between steps; the nearest is stage 2, which "
                              "keeps them whole and gathers them after the optimizer",
                              strategy.name));
    return;
  }
  run.strategy = Strategy::kZero3;
  if (strategy.hybrid) {
    settings.lost("strategy",
                  fmt::format("DeepSpeed no longer shards in groups (MiCS was removed in 2026), so "
                              "hsdp becomes stage 3 over all {} GPUs",
                              plan.gpus));
    if (plan.shard_group > 0) {
      settings.lost("shard_group", fmt::format("{}; all GPUs share one copy", plan.shard_group));
    }
    run.shard_group = 0;
    return;
  }
  settings.lost("strategy",
                fmt::format("{} becomes ZeRO stage 3, which gathers parameter by parameter into "
                            "fresh memory and reduces gradients in buckets",
                            strategy.name));
}

/// Master weights and moments in bf16 go together, beside bf16 parameters and under ZeRO.
bool keeps_bf16(const Plan& plan) {
  return plan.param_dtype == DType::kBf16 && plan.master_dtype == DType::kBf16 &&
         info_of(plan.strategy).zero_stage() > 0;
}

void remark_zero_types(const Plan& plan, TrainerSettings& settings) {
  const bool fp32 = plan.master_dtype == DType::kFp32 && plan.moment_dtype == DType::kFp32;
  if (fp32 || keeps_bf16(plan)) return;
  settings.lost("moment_dtype",
                fmt::format("master weights in {} with moments in {}; DeepSpeed keeps moments in "
                            "bf16 only beside bf16 master weights and under ZeRO, so both are fp32",
                            name_of(plan.master_dtype), name_of(plan.moment_dtype)));
  settings.as_run.master_dtype = settings.as_run.moment_dtype = DType::kFp32;
}

/// Outside ZeRO gradients of micro-batches are summed in the type of the model: the engine
/// implements no other (deepspeed/runtime/engine.py, "unsupported mix of model_dtype").
bool sums_in_bf16(const Plan& plan) {
  return info_of(plan.strategy).zero_stage() == 0 && plan.param_dtype == DType::kBf16;
}

void remark_zero_checkpointing(const Plan& plan, std::int64_t layers, TrainerSettings& settings) {
  const std::int64_t k = checkpointed_layers(plan);
  if (k == 0) return;
  settings.lost(
      "ckpt_layers",
      fmt::format(
          "{} are checkpointed ({}); DeepSpeed's section only sets how its own checkpoint() "
          "works, and the model's code decides which layers call it: Transformers' "
          "gradient_checkpointing_enable() takes all",
          of_layers(k, layers), recompute_name(plan)));
  recompute_all_layers(settings.as_run, Recompute::kFull, layers);
}

std::int64_t gathered_ahead(const Plan& plan) {
  return std::max<std::int64_t>(plan.gather_window() - 1, 0);
}

struct Zero {
  static int stage(const Told& t) { return info_of(t.run.strategy).zero_stage(); }
  static bool on(const Told& t) { return stage(t) > 0; }
  static bool three(const Told& t) { return stage(t) == 3; }
  static bool less(const Told& t) { return on(t) && !three(t); }
  static bool hpz(const Told& t) { return three(t) && info_of(t.run.strategy).second_shard; }
  static bool offloads(const Told& t) { return on(t) && t.run.offload == Offload::kOptimizer; }
  static bool narrow(const Told& t) { return t.run.master_dtype == DType::kBf16; }
  static bool names_sums(const Told& t) { return !sums_in_bf16(t.plan); }
  static bool marks(const Told& t) { return checkpointed_layers(t.plan) > 0; }

  static YamlSource its_stage(const Told& t) { return Write::number(stage(t)); }
  static YamlSource moments(const Told& t) { return Write::on(t.run.moment_dtype == DType::kBf16); }
  static YamlSource master(const Told& t) { return bare(name_of(t.run.master_dtype)); }
  static YamlSource sequences(const Told& t) {
    return Write::number(t.run.gpus * t.run.micro_batch * t.run.grad_accum);
  }
  static YamlSource ahead(const Told& t) {
    return Write::number(gathered_ahead(t.run) * count_parameters(t.inputs.model).layer());
  }
  static YamlSource live(const Told& t) {
    const ParameterCounts counts = count_parameters(t.inputs.model);
    return Write::number((gathered_ahead(t.run) + 1) *
                         std::max({counts.layer(), counts.embedding, counts.head}));
  }
  static YamlSource ranks_of_node(const Told& t) { return Write::number(t.ranks.per_node); }
  static YamlSource marked(const Told& t) { return Write::number(checkpointed_layers(t.plan)); }
};

// What the simulated stages use, and DeepSpeed's own default.
constexpr const char* kBucketElements = "500000000";
constexpr std::string_view kParametersStay = "parameters stay on the GPU here";

constexpr Row kDeepSpeed[] = {
    Row::code(take_zero_stage, "zero_optimization.stage").at(10, Zero::its_stage),
    Row::code(take_zero_batch),
    Row::written("train_batch_size").at(1, Zero::sequences),
    Row::written("train_micro_batch_size_per_gpu", "micro-batch").at(2),
    Row::written("gradient_accumulation_steps", "grad-accum").at(3),
    Row::code(take_zero_types, "bf16.enabled").on(5, When::bf16),
    Row::code(take_reductions, "communication_data_type", "reduce-dtype").at(8),
    Row::sets("bf16.bf16_optimizer_states", "moment-dtype", "bf16")
        .at(7, Zero::moments, Zero::narrow),
    Row::sets("bf16.bf16_master_weights_and_grads", "master-dtype", "bf16")
        .at(6, "true", Zero::narrow),
    Row::code(take_zero_offload, "zero_optimization.offload_optimizer.device")
        .at(21, "cpu", Zero::offloads),
    Row::sets("zero_optimization.cpu_offload", "offload", "optimizer"),
    Row::left("zero_optimization.cpu_offload_params", kParametersStay),
    Row::left("zero_optimization.offload_param.device", kParametersStay),
    Row::left("zero_optimization.zero_hpz_partition_size", "hpZ is not predicted from a file")
        .at(20, Zero::ranks_of_node, Zero::hpz),
    Row::left("zero_optimization.mics_shard_size", "DeepSpeed no longer shards in groups"),
    Row::free("zero_optimization.contiguous_gradients").at(12, "true", Zero::on),
    Row::free("zero_optimization.reduce_scatter").at(13, "true", Zero::on),
    Row::free("zero_optimization.reduce_bucket_size").at(14, kBucketElements, Zero::on),
    Row::free("zero_optimization.allgather_partitions").at(15, "true", Zero::less),
    Row::free("zero_optimization.allgather_bucket_size").at(16, kBucketElements, Zero::less),
    Row::free("zero_optimization.stage3_prefetch_bucket_size").at(17, Zero::ahead, Zero::three),
    Row::free("zero_optimization.stage3_max_live_parameters").at(18, Zero::live, Zero::three),
    Row::free("zero_optimization.stage3_max_reuse_distance").at(19, "0", Zero::three),
    Row::free("zero_optimization.offload_optimizer.pin_memory").at(22, "true", Zero::offloads),
    Row::free("stage3_param_persistence_threshold sub_group_size round_robin_gradients "
              "offload_optimizer.buffer_count offload_optimizer.fast_init "
              "offload_optimizer.pipeline_read offload_optimizer.pipeline_write "
              "offload_optimizer.ratio offload_optimizer.nvme_path offload_param.pin_memory "
              "offload_param.buffer_count offload_param.buffer_size offload_param.max_in_cpu "
              "offload_param.nvme_path stage3_gather_fp16_weights_on_model_save "
              "ignore_unused_parameters load_from_fp32_weights elastic_checkpoint "
              "use_multi_rank_bucket_allreduce stage3_gather_16bit_weights_on_model_save",
              "zero_optimization."),
    Row::free("zero_allow_untested_optimizer").at(23, "true"),
    Row::code(take_sums, "data_types.grad_accum_dtype").at(9, Zero::master, Zero::names_sums),
    Row::written("zero_optimization.overlap_comm").at(11, "true", Zero::on),
    Row::code(take_zero_checkpointing, "activation_checkpointing.number_checkpoints")
        .at(27, Zero::marked, Zero::marks),
    Row::written("activation_checkpointing.partition_activations").at(24, "false", Zero::marks),
    Row::written("activation_checkpointing.cpu_checkpointing").at(25, "false", Zero::marks),
    Row::written("activation_checkpointing.contiguous_memory_optimization")
        .at(26, "false", Zero::marks),
    Row::written("activation_checkpointing.synchronize_checkpoint_boundary")
        .at(28, "false", Zero::marks),
    Row::written("activation_checkpointing.profile").at(29, "false", Zero::marks),
    Row::degree("tensor_parallel.autotp_size", "tp"),
    Row::code(take_deepspeed_optimizer),
    Row::free("gradient_clipping").at(4, "1.0"),
    Row::free("prescale_gradients gradient_predivide_factor sparse_gradients steps_per_print "
              "wall_clock_breakdown dump_state memory_breakdown zero_force_ds_cpu_optimizer "
              "communication_data_type"),
    Row::code(assume_length),
};

}  // namespace

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

Strategy zero_strategy(std::int64_t stage) {
  return stage == 0   ? Strategy::kDdp
         : stage == 1 ? Strategy::kZero1
         : stage == 2 ? Strategy::kZero2
                      : Strategy::kZero3;
}

void take_optimizer_device(SettingBox& box, std::string_view key, ImportedConfig& to) {
  const auto device = box.take(key);
  if (!device || *device == "none") return;
  if (*device != "cpu" && *device != "nvme") box.fail("none, cpu or nvme");
  box.set_knob("offload", "optimizer", to);
  if (*device == "nvme")
    to.not_taken.push_back({box.key(), *device, "predicted as the host's memory"});
}

bool is_deepspeed(const SettingBox& box) {
  return box.has("zero_optimization") || box.has("train_micro_batch_size_per_gpu") ||
         box.has("train_batch_size");
}

void read_deepspeed(SettingBox& box, ImportedConfig& to) {
  read_rows(kDeepSpeed, box, to);
}

TrainerSettings deepspeed_settings(const sim::Job& inputs, const Plan& plan) {
  refuse_model_parallel(plan, "DeepSpeed");
  TrainerSettings settings;
  settings.as_run = plan;
  const Ranks ranks = ranks_of(inputs, plan);
  set_zero_strategy(plan, settings);
  remark_stack(plan, "DeepSpeed with Transformers", "hf-eager", settings);
  remark_zero_types(plan, settings);
  if (sums_in_bf16(plan) && plan.grad_accum > 1) {
    settings.lost("grad_accum",
                  fmt::format("without ZeRO DeepSpeed sums the gradients of the {} micro-batches "
                              "in bf16",
                              plan.grad_accum));
  }
  if (info_of(settings.as_run.strategy).zero_stage() == 3) {
    const std::int64_t ahead = gathered_ahead(plan);
    settings.said("prefetch",
                  fmt::format("{} gathered ahead: stage3_prefetch_bucket_size and "
                              "stage3_max_live_parameters count parameters",
                              ahead == 1 ? "1 layer" : fmt::format("{} layers", ahead)));
  }
  remark_zero_checkpointing(plan, inputs.model.layers, settings);
  settings.said("seq_len", fmt::format("the script's own: sequences of {} tokens, {} attention",
                                       plan.seq_len, name_of(plan.attention)));
  settings.said("gpus", fmt::format("start with deepspeed --num_nodes {} --num_gpus {} SCRIPT "
                                    "--deepspeed_config FILE",
                                    ranks.nodes, ranks.per_node));
  settings.body = json_of(kDeepSpeed, {inputs, plan, settings.as_run, ranks});
  return settings;
}

}  // namespace shardwright::cli
