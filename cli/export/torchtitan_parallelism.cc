// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "cli/export/torchtitan_options.h"
#include "profiles/ledger/ledger.h"
#include "sim/core/base/error.h"
#include "sim/program/stages.h"

namespace shardwright::cli {
namespace {

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

void add_pipeline(const sim::Job& inputs, const Plan& plan, TitanOptions& options) {
  const char* section = "parallelism";
  const PipelineKind kind = plan.parallel.schedule();
  options.push_back({section, "pipeline_parallel_schedule", string_literal(schedule_class(kind))});
  options.push_back(
      {section, "pipeline_parallel_microbatch_size", JsonSource::format("{}", plan.micro_batch)});
  options.push_back({section, "module_fqns_per_model_part",
                     parts_of_model(inputs.model, plan, inputs.profile.stack)});
}

void remark_context(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings) {
  const auto usual = parallel_word<ContextComm>(inputs.profile.stack.parallel.cp_comm);
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

}  // namespace

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
  if (shard > 1) {
    options.push_back({section, "fsdp_reshard_after_forward", "\"default\"",
                       "never with a pipeline, else always"});
  }
  if (p.tp > 1 && overlap == TensorOverlap::kAsync) {
    options.push_back({"compile", "enable_async_tensor_parallel", "true"});
  }
  if (p.pp > 1) add_pipeline(inputs, plan, options);
  if (p.cp > 1) remark_context(inputs, plan, settings);
  if (inputs.model.is_moe()) remark_experts(plan, settings);
  remark_numerics(plan, settings);
  return options;
}

}  // namespace shardwright::cli
