// SPDX-License-Identifier: Apache-2.0
#include "cli/export/megatron_options.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "profiles/ledger/ledger.h"
#include "sim/core/base/error.h"
#include "sim/program/low_precision.h"

namespace shardwright::cli {
namespace {

/// Collects options under the heading of the moment.
class Options {
 public:
  void group(const char* name) { group_ = name; }
  template <typename Number>
  void value(const char* argument, Number number, const char* field = "") {
    add(argument, ShellSource::format("{}", number), field, PythonSource::format("{}", number));
  }
  void word(const char* argument, std::string_view word, const char* field = "") {
    add(argument, shell_word(word), field, string_literal(word));
  }
  void on(const char* argument, const char* field = "") { add(argument, "", field, "True"); }
  void off(const char* argument, const char* field) { add(argument, "", field, "False"); }
  void add(const char* argument, ShellSource value, const char* field, PythonSource python) {
    options_.push_back({group_, argument, std::move(value), field, std::move(python)});
  }
  MegatronOptions take() && { return std::move(options_); }

 private:
  const char* group_ = "";
  MegatronOptions options_;
};

[[noreturn]] void not_in_megatron(std::string_view knob, std::string_view value,
                                  std::string_view expected) {
  throw Error(
      fmt::format("{} is {}, which Megatron does not have, expected {}", knob, value, expected));
}

void add_attention(const Model& model, Options& out) {
  if (model.latent.kv_rank > 0) {
    const LatentAttention& latent = model.latent;
    out.on("--multi-latent-attention");
    if (latent.q_rank > 0) out.value("--q-lora-rank", latent.q_rank);
    out.value("--kv-lora-rank", latent.kv_rank);
    out.value("--qk-head-dim", latent.nope_dim);
    out.value("--qk-pos-emb-head-dim", latent.rope_dim);
    out.value("--v-head-dim", latent.v_dim);
    return;
  }
  if (model.kv_heads != model.heads) {
    out.on("--group-query-attention");
    out.value("--num-query-groups", model.kv_heads);
  }
  if (model.head_dim * model.heads != model.hidden) out.value("--kv-channels", model.head_dim);
  if (model.qk_norm || model.qk_norm_whole) out.on("--qk-layernorm");
}

void add_experts(const Model& model, Options& out) {
  const Experts& e = model.experts;
  out.value("--num-experts", e.count);
  out.value("--moe-ffn-hidden-size", e.ffn);
  out.value("--moe-router-topk", e.per_token);
  if (e.shared_ffn > 0) out.value("--moe-shared-expert-intermediate-size", e.shared_ffn);
  if (e.groups > 1) {
    out.value("--moe-router-num-groups", e.groups);
    out.value("--moe-router-group-topk", e.groups_per_token);
  }
  if (e.first_layer > 0 || e.every > 1) {
    std::string layers;
    for (std::int64_t i = 0; i < model.layers; ++i)
      layers += fmt::format("{}{}", i == 0 ? "" : ",", model.has_experts(i) ? 1 : 0);
    out.word("--moe-layer-freq", "[" + layers + "]");
  }
  out.on("--moe-grouped-gemm");
}

/// The nearest of Megatron's strategies.
Strategy megatron_strategy(Strategy strategy) {
  const StrategyInfo& info = info_of(strategy);
  if (info.bucketed || info.shards == Sharded::kNothing) return strategy;
  return info.shards == Sharded::kParameters ? Strategy::kMegatronFsdp
                                             : Strategy::kDistributedOptimizer;
}

void add_data_parallelism(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings,
                          Options& out) {
  const Strategy strategy = megatron_strategy(plan.strategy);
  if (strategy != plan.strategy) {
    settings.lost("strategy", fmt::format("Megatron has no {}; the settings run {}",
                                          name_of(plan.strategy), name_of(strategy)));
    settings.as_run.strategy = strategy;
  }
  const ParallelSoftware& software = inputs.profile.stack.parallel;
  const bool fsdp = strategy == Strategy::kMegatronFsdp;
  if (fsdp) {
    out.on("--use-megatron-fsdp", "ddp.use_megatron_fsdp");
    out.word("--data-parallel-sharding-strategy", "optim_grads_params",
             "ddp.data_parallel_sharding_strategy");
    out.word("--ckpt-format", "fsdp_dtensor", "checkpoint.ckpt_format");  // it takes no other
  }
  if (fsdp || strategy == Strategy::kDistributedOptimizer) {
    out.on("--use-distributed-optimizer", "ddp.use_distributed_optimizer");
  }
  if (plan.shard_group > 0) {
    const std::int64_t ranks = plan.gpus / (plan.parallel.tp * plan.parallel.pp);
    if (ranks % plan.shard_group == 0 && ranks > plan.shard_group) {
      out.value("--num-distributed-optimizer-instances", ranks / plan.shard_group,
                "ddp.num_distributed_optimizer_instances");
    }
  }
  const bool reduces =
      plan.parallel.overlap_grad_reduce.value_or(fsdp || software.overlap_grad_reduce);
  const bool gathers =
      plan.parallel.overlap_param_gather.value_or(fsdp || software.overlap_param_gather);
  if (reduces) out.on("--overlap-grad-reduce", "ddp.overlap_grad_reduce");
  if (gathers && info_of(strategy).shards != Sharded::kNothing)
    out.on("--overlap-param-gather", "ddp.overlap_param_gather");
  if (plan.reduce_dtype == DType::kBf16) {
    out.add("--grad-reduce-in-bf16", "", "ddp.grad_reduce_in_fp32", "False");
  } else {
    // By itself beside bf16 alone.
    const bool half = plan.numerics.precision == Precision::kFp16;
    out.add(half ? "--accumulate-allreduce-grads-in-fp32" : "", "", "ddp.grad_reduce_in_fp32",
            "True");
  }
}

void add_pipeline(const Plan& plan, Options& out) {
  const Parallelism& p = plan.parallel;
  out.value("--pipeline-model-parallel-size", p.pp, "model.pipeline_model_parallel_size");
  if (p.pp == 1) return;
  const PipelineInfo& schedule = info_of(p.schedule());
  if (!schedule.megatron) {
    not_in_megatron("pp_schedule", schedule.name,
                    pipeline_schedules_with([](const PipelineInfo& i) { return i.megatron; }));
  }
  if (!p.pp_layout.empty()) {
    // The layout says how many virtual stages there are.
    out.word("--pipeline-model-parallel-layout", p.pp_layout,
             "model.pipeline_model_parallel_layout");
  }
  if (p.virtual_stages > 1) {
    out.add(p.pp_layout.empty() ? "--num-virtual-stages-per-pipeline-rank" : "",
            ShellSource::format("{}", p.virtual_stages),
            "model.virtual_pipeline_model_parallel_size",
            PythonSource::format("{}", p.virtual_stages));
  }
}

/// Where layers alone do not divide, Megatron counts embedding and head as a layer each.
void add_stage_split(const Model& model, const Plan& plan, Options& out) {
  const Parallelism& p = plan.parallel;
  const std::int64_t chunks = p.pp * p.virtual_stages;
  if (p.pp == 1 || !p.pp_layout.empty() || model.layers % chunks == 0) return;
  if ((model.layers + 2) % chunks != 0) {
    throw Error(fmt::format(
        "pp times virtual_stages is {}, which divides neither the {} layers nor these with "
        "embedding and head, expected a pp_layout that says where they go",
        chunks, model.layers));
  }
  out.on("--account-for-embedding-in-pipeline-split",
         "model.account_for_embedding_in_pipeline_split");
  out.on("--account-for-loss-in-pipeline-split", "model.account_for_loss_in_pipeline_split");
}

void add_context(const Plan& plan, Options& out) {
  const Parallelism& p = plan.parallel;
  if (p.cp == 1) return;
  out.value("--context-parallel-size", p.cp, "model.context_parallel_size");
  const ContextComm comm = p.cp_comm.value_or(ContextComm::kRing);
  out.word("--cp-comm-type",
           comm == ContextComm::kRing        ? "p2p"
           : comm == ContextComm::kAllGather ? "all_gather"
                                             : "a2a",
           "model.cp_comm_type");
}

void add_expert_parallelism(const sim::Job& inputs, const Plan& plan, Options& out) {
  if (!inputs.model.is_moe()) return;
  const Parallelism& p = plan.parallel;
  out.value("--expert-model-parallel-size", p.ep, "model.expert_model_parallel_size");
  out.value("--expert-tensor-parallel-size", p.etp, "model.expert_tensor_parallel_size");
  const Dispatcher dispatcher =
      p.dispatcher.value_or(profiles::usual_dispatcher(inputs.profile.stack));
  const bool flex = dispatcher == Dispatcher::kDeepEp || dispatcher == Dispatcher::kHybridEp;
  out.word("--moe-token-dispatcher-type", flex ? "flex" : name_of(dispatcher),
           "model.moe_token_dispatcher_type");
  if (flex) {
    out.word("--moe-flex-dispatcher-backend", name_of(dispatcher),
             "model.moe_flex_dispatcher_backend");
  }
  if (p.ep_overlap.value_or(false)) {
    out.on("--overlap-moe-expert-parallel-comm", "model.overlap_moe_expert_parallel_comm");
    out.on("--delay-wgrad-compute", "model.delay_wgrad_compute");
  }
  if (p.expert_capacity) {
    out.value("--moe-expert-capacity-factor", *p.expert_capacity,
              "model.moe_expert_capacity_factor");
  }
  if (p.expert_load && p.expert_load->routing == Routing::kBalanced) {
    out.on("--moe-router-force-load-balancing", "model.moe_router_force_load_balancing");
  }
}

void add_parallelism(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings,
                     Options& out) {
  const Parallelism& p = plan.parallel;
  out.group("parallelism");
  out.value("--tensor-model-parallel-size", p.tp, "model.tensor_model_parallel_size");
  if (p.sequence_parallel()) {
    out.on("--sequence-parallel", "model.sequence_parallel");
  } else if (p.tp > 1) {
    out.add("", "", "model.sequence_parallel", "False");
  }
  const TensorOverlap overlap = p.tp_overlap.value_or(
      profiles::usual_overlap(inputs.profile.stack, inputs.model, plan.numerics.precision));
  if (overlap == TensorOverlap::kAsync)
    not_in_megatron("tp_overlap", "async", "none or userbuffers");
  if (overlap == TensorOverlap::kUserbuffers && p.tp > 1)
    out.on("--tp-comm-overlap", "comm_overlap.tp_comm_overlap");
  add_pipeline(plan, out);
  add_stage_split(inputs.model, plan, out);
  add_context(plan, out);
  add_expert_parallelism(inputs, plan, out);
  if (p.rank_order == "tp-cp-ep-pp-dp") {
    out.on("--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping");
  } else if (p.rank_order != Parallelism::kUsualOrder) {
    not_in_megatron("rank_order", p.rank_order, "tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
  }
  add_data_parallelism(inputs, plan, settings, out);
}

void add_precision(const Plan& plan, Options& out) {
  const Numerics& n = plan.numerics;
  out.group("precision");
  if (plan.param_dtype == DType::kFp32 && n.precision == Precision::kBf16) return;
  out.on(n.precision == Precision::kFp16 ? "--fp16" : "--bf16");
  if (n.precision == Precision::kNvfp4) {
    out.word("--fp4-format", "e2m1");
    out.word("--fp4-recipe", "nvfp4");
  }
  if (n.precision != Precision::kFp8) return;
  const Fp8Recipe recipe = sim::fp8_recipe_of(plan);
  if (recipe == Fp8Recipe::kRowwise) {
    not_in_megatron("fp8_recipe", "rowwise", "delayed, tensorwise, block or mxfp8");
  }
  const bool per_tensor = recipe == Fp8Recipe::kDelayed || recipe == Fp8Recipe::kTensorwise;
  out.word("--fp8-format", per_tensor ? "hybrid" : "e4m3");
  out.word("--fp8-recipe", recipe == Fp8Recipe::kBlock ? "blockwise" : name_of(recipe));
  if (n.fp8_params) out.on("--fp8-param-gather");
}

/// What validate_args and OptimizerConfig demand of --optimizer-cpu-offload, which goes with
/// --use-precision-aware-optimizer.
void check_offloaded_optimizer(const Plan& plan) {
  const bool shards = info_of(megatron_strategy(plan.strategy)).shards != Sharded::kNothing;
  if (!shards) {
    not_in_megatron("offload", "optimizer with every rank's whole optimizer state",
                    "strategy distributed-optimizer");
  }
  if (plan.numerics.optimizer != Optimizer::kAdamw)
    not_in_megatron("offload", fmt::format("optimizer {}", name_of(plan.numerics.optimizer)),
                    "adamw");
  if (plan.numerics.fp8_params && sim::fp8_recipe_of(plan) != Fp8Recipe::kDelayed)
    not_in_megatron("offload", "optimizer with fp8_params", "fp8_recipe delayed or fp8_params off");
}

void add_optimizer(const Plan& plan, TrainerSettings& settings, Options& out) {
  out.group("optimizer");
  switch (plan.numerics.optimizer) {
    case Optimizer::kAdamw:
      out.word("--optimizer", "adam", "optimizer.optimizer");
      break;
    case Optimizer::kSgd:
      out.word("--optimizer", "sgd", "optimizer.optimizer");
      break;
    case Optimizer::kMuon:
      out.word("--optimizer", "muon", "optimizer.optimizer");
      break;
    case Optimizer::kAdamw8bit:
      not_in_megatron("optimizer", "adamw-8bit", "adamw, muon or sgd");
  }
  const bool narrow = plan.moment_dtype != DType::kFp32 || plan.master_dtype != DType::kFp32;
  const bool offloads = plan.offload == Offload::kOptimizer;
  if (offloads) check_offloaded_optimizer(plan);
  if (narrow || offloads) {
    const bool half = plan.moment_dtype == DType::kBf16;
    const char* const moments = half ? "bf16" : "fp32";
    const char* const torch = half ? "torch.bfloat16" : "torch.float32";
    out.on("--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer");
    out.add("--exp-avg-dtype", moments, "optimizer.exp_avg_dtype", torch);
    out.add("--exp-avg-sq-dtype", moments, "optimizer.exp_avg_sq_dtype", torch);
    if (plan.master_dtype != DType::kFp32) {
      settings.lost("master_dtype",
                    "bf16; Megatron keeps main parameters in fp32, or in fp16 with "
                    "--main-params-dtype fp16");
      settings.as_run.master_dtype = DType::kFp32;
    }
  }
  if (offloads) {
    out.on("--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload");
    out.add("--optimizer-offload-fraction", "1.0", "optimizer.optimizer_offload_fraction", "1.0");
    out.on("--overlap-cpu-optimizer-d2h-h2d", "optimizer.overlap_cpu_optimizer_d2h_h2d");
    settings.said("offload",
                  "Megatron updates offloaded state on the processor; predicted is an update on "
                  "the GPU with the state passing through");
  } else if (plan.offload == Offload::kActivations) {
    out.add("", "", "model.cpu_offloading", "True");
    out.add("", "", "model.cpu_offloading_num_layers",
            PythonSource::format("{}", plan.offload_layers));
    settings.said("offload",
                  "Megatron-LM's command line has no offloading of activations; it is a field of "
                  "its configuration (cpu_offloading_num_layers)");
  }
}

/// Megatron's names of modules that can run again.
std::vector<std::string> recomputed_modules(const Model& model, const Plan& plan,
                                            TrainerSettings& settings) {
  constexpr std::pair<RecomputePiece, const char*> kModules[] = {
      {kPieceNorm, "layernorm"},
      {kPieceCoreAttention, "core_attn"},
      {kPieceMlaUpProjection, "mla_up_proj"},
      {kPieceMoe, "moe"},
      {kPieceMoeActivation, "moe_act"},
      {kPieceSharedExperts, "shared_experts"}};
  std::vector<std::string> modules;
  std::uint16_t told = 0;
  for (const auto& [piece, name] : kModules) {
    if ((plan.pieces & piece) == 0) continue;
    modules.emplace_back(name);
    told |= piece;
  }
  const auto also = [&](RecomputePiece piece, const char* name) {
    if ((plan.pieces & piece) == 0) return;
    modules.emplace_back(name);
    told |= piece;
  };
  if (!model.is_moe()) also(kPieceFfn, "mlp");
  if (model.is_moe()) also(kPieceSwiglu, "moe_act");
  if (told != plan.pieces) {
    settings.lost(
        "recompute",
        fmt::format("{}; of these Megatron recomputes only {}", recompute_name(plan),
                    modules.empty() ? "none" : fmt::format("{}", fmt::join(modules, ", "))));
    settings.as_run.pieces = told;
    if (told == 0) settings.as_run.recompute = Recompute::kNone;
  }
  return modules;
}

void add_recomputation(const Model& model, const Plan& plan, TrainerSettings& settings,
                       Options& out) {
  out.group("recomputation");
  const std::int64_t k = checkpointed_layers(plan);
  if (k == 0) return;
  if (plan.recompute == Recompute::kFull) {
    const std::int64_t chunks = plan.parallel.pp * plan.parallel.virtual_stages;
    const bool all = k == model.layers;
    out.word("--recompute-granularity", "full", "model.recompute_granularity");
    out.word("--recompute-method", all ? "uniform" : "block", "model.recompute_method");
    const std::int64_t each = all ? 1 : (k + chunks - 1) / chunks;
    out.value("--recompute-num-layers", each, "model.recompute_num_layers");
    if (!all && each * chunks != k) {
      settings.lost("ckpt_layers",
                    fmt::format("{} recompute; Megatron counts them by chunk of a stage, and {} "
                                "in each of {} chunks are {}",
                                of_layers(k, model.layers), each, chunks, each * chunks));
      settings.as_run.ckpt_layers = std::min(model.layers, each * chunks);
    }
    return;
  }
  std::vector<std::string> modules;
  if (plan.recompute == Recompute::kSelectiveOp) {
    settings.lost("recompute",
                  "selective-op; Megatron recomputes modules, and the nearest is core_attn");
    settings.as_run.recompute = Recompute::kPieces;
    settings.as_run.pieces = kPieceCoreAttention;
    modules = {"core_attn"};
  } else {
    modules = recomputed_modules(model, plan, settings);
  }
  if (modules.empty()) return;
  if (k < model.layers) {
    settings.lost("ckpt_layers", fmt::format("{} recompute; Megatron's modules do in all layers",
                                             of_layers(k, model.layers)));
    settings.as_run.ckpt_layers = model.layers;
  }
  out.word("--recompute-granularity", "selective", "model.recompute_granularity");
  ShellSource words;
  PythonSource list;
  for (const std::string& module : modules) {
    const char* const gap = &module == &modules[0] ? "" : " ";
    words += gap + shell_word(module);
    list += PythonSource::format("{}{}{}", *gap == 0 ? "" : ",", gap, string_literal(module));
  }
  out.add("--recompute-modules", words, "model.recompute_modules",
          PythonSource::format("[{}]", list));
}

void remark_rest(const Plan& plan, TrainerSettings& settings) {
  const Plan usual;
  if (plan.deterministic) {
    settings.lost("deterministic", "on; Megatron's --deterministic-mode changes more than this");
    settings.as_run.deterministic = false;
  }
  if (plan.buffers != usual.buffers || plan.prefetch != usual.prefetch) {
    settings.lost("prefetch", fmt::format("{} buffers and {} gathered ahead; Megatron gathers by "
                                          "bucket",
                                          plan.buffers, plan.prefetch));
  }
  settings.as_run.buffers = usual.buffers;
  settings.as_run.prefetch = usual.prefetch;
}

}  // namespace

MegatronOptions megatron_model_options(const sim::Job& inputs, const Plan& plan,
                                       TrainerSettings& settings) {
  const Model& model = inputs.model;
  Options out;
  out.group("model");
  out.value("--num-layers", model.layers);
  out.value("--hidden-size", model.hidden);
  out.value("--ffn-hidden-size", model.ffn);
  out.value("--num-attention-heads", model.heads);
  add_attention(model, out);
  out.value("--seq-length", plan.seq_len);
  out.value("--max-position-embeddings", std::max(plan.seq_len, model.max_positions));
  out.word("--normalization", model.norm == Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm");
  if (model.gated_mlp) out.on("--swiglu");
  if (model.activation == Activation::kRelu) out.on("--squared-relu");
  if (model.position == Position::kRope) {
    out.word("--position-embedding-type", "rope");
    out.word("--rotary-base", fmt::format("{:.0f}", model.rope.theta));
    if (model.rope.rotary_fraction < 1)
      out.word("--rotary-percent", fmt::format("{}", model.rope.rotary_fraction));
  } else if (model.position == Position::kLearned) {
    out.word("--position-embedding-type", "learned_absolute");
  } else {
    settings.lost("model", "its attention is biased by distance (ALiBi), which Megatron has not");
  }
  if (!model.tied_head) out.on("--untie-embeddings-and-output-weights");
  if (!model.mlp_bias && !model.attention_out_bias) out.on("--disable-bias-linear");
  if (model.qkv_bias && !model.mlp_bias) out.on("--add-qkv-bias");
  out.word("--attention-dropout", "0.0");
  out.word("--hidden-dropout", "0.0");
  out.value("--vocab-size", model.vocab);
  if (model.is_moe()) add_experts(model, out);
  if (model.mtp_layers > 0) out.value("--mtp-num-layers", model.mtp_layers);
  if (model.sliding_window > 0) {
    settings.lost("model",
                  "its attention has windows; pass --window-size and, where only some "
                  "layers have one, --window-attn-skip-freq");
  }
  return std::move(out).take();
}

MegatronOptions megatron_plan_options(const sim::Job& inputs, const Plan& plan,
                                      TrainerSettings& settings) {
  settings.as_run = plan;
  remark_stack(plan, "Megatron",
               inputs.profile.stack.optimizer.bucketed ? plan.stack : "megatron-core", settings);
  Options out;
  add_parallelism(inputs, plan, settings, out);
  out.group("batch");
  const std::int64_t replicas = plan.gpus / plan.parallel.replica();
  out.value("--micro-batch-size", plan.micro_batch, "train.micro_batch_size");
  out.value("--global-batch-size", plan.micro_batch * plan.grad_accum * replicas,
            "train.global_batch_size");
  add_precision(plan, out);
  add_optimizer(plan, settings, out);
  add_recomputation(inputs.model, plan, settings, out);
  if (plan.attention == AttentionKind::kEager) {
    out.group("attention");
    out.add("--attention-backend", "unfused", "", "");
  }
  remark_rest(plan, settings);
  return std::move(out).take();
}

}  // namespace shardwright::cli
