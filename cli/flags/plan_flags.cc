// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/plan_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cli/flags/changed_plan.h"
#include "profiles/usual_stack.h"
#include "sim/core/error.h"
#include "sim/core/parallel_knobs.h"
#include "sim/core/plan_json.h"
#include "sim/core/rack.h"

namespace shardwright::cli {
namespace {

constexpr const char* kWhat = "What, on what, how";

void require(std::string_view flag, const std::optional<std::string>& given,
             const std::string& from_file, std::string_view example) {
  if (given ? !given->empty() : !from_file.empty()) return;
  throw Error(
      fmt::format("{} is missing: give a shipped name such as {}, or a path.", flag, example),
      ExitCode::kUsage);
}

/// "what it is (default: searched)".
std::string described(bool searched, std::string_view what, std::string_view otherwise) {
  return fmt::format("{} (default: {})", what, searched ? "searched" : otherwise);
}

/// `knob` binds a name, the type that --help shows, and a description.
void declare_knobs(bool searched, const auto& knob) {
  knob("seq-len", "N", "tokens of a sequence, as 8192 or 8k (default: 2048)");
  knob("micro-batch", "N", described(searched, "sequences per GPU at a time", "1"));
  knob("grad-accum", "N", described(searched, "micro-steps per optimizer step", "1"));
  knob("strategy", "NAME[,NAME]",
       fmt::format("{}; several{} joined by commas{} (default: {})",
                   fmt::join(strategy_names(), ", "), searched ? "" : ",",
                   searched ? "" : ", are compared", searched ? "all are searched" : "yafsdp"));
  knob("shard-group", "N", "GPUs that share one copy of the parameters");
  knob("ckpt-layers", "K|all",
       described(searched, "checkpoint the first K layers, or all; 0 recomputes nothing", "0"));
  knob("recompute", "WHAT",
       described(searched,
                 "what checkpointed layers recompute: none, full, selective-op, or some of norm, "
                 "swiglu, ffn, attention, block joined by commas",
                 "full"));
  knob("param-dtype", "fp32|bf16", "compute and gather (default: bf16)");
  knob("reduce-dtype", "fp32|bf16", "gradient reduction (default: fp32)");
  knob("moment-dtype", "fp32|bf16", "Adam's moments (default: fp32)");
  knob("buffers", "N", described(searched, "rotating gather buffers of yafsdp", "2"));
  knob("prefetch", "N", "units gathered ahead, at most buffers - 1 (default: all)");
  knob("attention", "flash|eager", described(searched, "attention kernel", "flash"));
  knob("loss-chunks", "N",
       "pieces in which logits and loss are computed (default: as the software does)");
  knob("allocator", "native|expandable",
       "PyTorch's allocator, or with expandable segments (default: as the software sets it)");
  knob("deterministic", "on|off",
       "on: equal bits every time on GPUs, too; attention adds in one order (default: off)");
}

void declare_parallel_knobs(bool searched, const auto& knob) {
  const auto size = [&](const char* name, std::string_view what) {
    knob(name, "N", described(searched, what, "1"));
  };
  size("tp", "tensor parallel: ranks that share every matrix");
  knob("sp", "on|off", "sequence parallel between the matrices (default: on where tp > 1)");
  size("pp", "pipeline stages");
  size("virtual-stages", "chunks of a stage");
  knob(
      "pp-schedule", "NAME",
      fmt::format("{} (default: 1f1b, interleaved with virtual stages)", words_of<PipelineKind>()));
  knob(
      "pp-layout", "TEXT",
      "what each stage holds, as Megatron writes it: \"Et*3|(tt|)*29m|L\" (default: equal stages)");
  size("cp", "context parallel: ranks that share every sequence");
  knob("cp-comm", "NAME", fmt::format("{} (default: the stack's)", words_of<ContextComm>()));
  size("ep", "expert parallel: ranks that share the experts");
  size("etp", "tensor parallel of the experts");
  knob("dispatcher", "NAME", fmt::format("{} (default: the stack's)", words_of<Dispatcher>()));
  knob("ep-overlap", "on|off", "all-to-alls hide behind another micro-batch (default: off)");
  knob("tp-overlap", "NAME", fmt::format("{} (default: the stack's)", words_of<TensorOverlap>()));
  knob(
      "rank-order", "A-B-C-D-E",
      fmt::format("order of the ranks, the fastest first (default: {})", Parallelism::kUsualOrder));
  knob("precision", "NAME",
       fmt::format("what layers multiply in: {} (default: bf16)", words_of<Precision>()));
  knob("fp8-recipe", "NAME", fmt::format("{} (default: tensorwise)", words_of<Fp8Recipe>()));
  knob("fp8-params", "on|off", "parameters are kept and gathered in fp8 (default: off)");
  knob("optimizer", "NAME", fmt::format("{} (default: adamw)", words_of<Optimizer>()));
  knob("lora", "RANK", "train adapters of this rank only (default: the model itself)");
  knob("offload", "none|optimizer|activations:N", "what the host's memory holds (default: none)");
}

/// global batch = micro-batch * accumulation * data-parallel ranks.
void take_global_batch(std::int64_t global_batch, const GivenKnobs& knobs, Plan& plan) {
  const std::int64_t ranks = std::max<std::int64_t>(1, plan.gpus / plan.parallel.replica());
  const std::int64_t at_once = plan.micro_batch * ranks;
  if (global_batch % at_once != 0) {
    throw Error(
        fmt::format("--global-batch is {}, but {} ranks take {} sequences at a time, "
                    "expected a multiple of {}.",
                    global_batch, ranks, at_once, at_once));
  }
  const std::int64_t accum = global_batch / at_once;
  if (knobs.grad_accum && *knobs.grad_accum != accum) {
    throw Error(
        fmt::format("--grad-accum is {}, but --global-batch {} makes it {}, expected one of "
                    "the two flags.",
                    *knobs.grad_accum, global_batch, accum));
  }
  plan.grad_accum = accum;
}

}  // namespace

void PlanFlags::declare(Command& command, bool searched) {
  const auto text = [&](const char* flag, std::optional<std::string>& value, const char* type,
                        const char* description) {
    command.add(flag, value, description).type_name(type).group(kWhat);
  };
  const auto knob = [&](const char* name, const char* type, const std::string& description) {
    command
        .add_parsed(
            fmt::format("--{}", name),
            [this, &entry = plan_knob(name)](const std::string& word) {
              entry.read(knobs, fmt::format("--{}", entry.name), word);
            },
            description)
        .type_name(type)
        .group(kWhat);
  };
  text("--model", model, "NAME|PATH", "a built-in model, or a Hugging Face config.json or folder");
  text("--cluster", cluster, "NAME|PATH", "a shipped cluster (see inspect clusters) or a file");
  command.add("--gpus", gpus, "GPUs in all (default: one node)", {1, 1 << 20}).group(kWhat);
  declare_knobs(searched, knob);
  declare_parallel_knobs(searched, knob);
  if (!searched) {
    command
        .add("--global-batch", global_batch, "sequences of a step: decides --grad-accum",
             {1, 1 << 30})
        .group(kWhat);
  }
  text("--stack", stack, "NAME|PATH",
       "the software that executes (see inspect stacks; default: torch-compile on GPUs, native on "
       "processors, megatron-core where the model has experts or is divided)");
  command.add("--set", overrides, "override a value of the profile by its path; repeatable")
      .type_name("KEY=VALUE")
      .repeatable()
      .group(kWhat);
  text("--plan", plan_file, "FILE",
       searched ? "take model, cluster, batch and the like from a plan that tune wrote"
                : "start from a plan that tune wrote; flags on the command line change it");
}

namespace {

/// `planned`: `file` is the plan to change, not a set of defaults.
sim::Job base_on(const PlanFlags& flags, const PlanDocument& file, bool planned) {
  require("--model", flags.model, file.model, "llama-3-70b");
  require("--cluster", flags.cluster, file.cluster, "dgx-h100");
  sim::Job job = sim::job_of(file, flags.plan_file.value_or(""), flags.model, flags.cluster);
  Plan plan = file.plan;
  if (!planned) plan.stack = profiles::usual_stack(job.cluster_file.cluster);
  Plan asked;
  take_parallelism(flags.knobs.parallel, asked);
  const bool divides = !beyond_data_parallel(asked).empty() || job.model.is_mixture();
  if (!planned && divides) plan.stack = profiles::usual_dividing_stack();
  plan.stack = flags.stack.value_or(plan.stack);
  job.overrides = file.overrides;
  job.overrides.insert(job.overrides.end(), flags.overrides.begin(), flags.overrides.end());
  job.profile =
      profiles::make_profile(job.cluster_file, profiles::load_stack(plan.stack), job.overrides);
  if (!planned) {
    const Cluster& cluster = job.profile.cluster;
    plan.gpus = cluster.devices_per_node > 0 ? cluster.devices_per_node : cluster.gpus_per_node;
    plan.seq_len = usual_seq_len(job.model);
  }
  plan.gpus = flags.gpus.value_or(plan.gpus);
  job.profile.cluster = filled(std::move(job.profile.cluster), plan.gpus);
  plan.seq_len = flags.knobs.seq_len.value_or(plan.seq_len);
  job.plans = {std::move(plan)};
  return job;
}

sim::Job with_flags(const PlanFlags& flags, sim::Job job, bool planned) {
  const Plan base = with_knobs(job.plans.front(), flags.knobs, job.model.layers);
  std::vector<Strategy> strategies = flags.knobs.strategies;
  if (strategies.empty()) {
    // Software that divides the model shards the optimizer over its replicas.
    const bool own = !planned && job.profile.stack.parallel.always;
    strategies = {own ? Strategy::kDistributedOptimizer : base.strategy};
  }
  job.plans.clear();
  for (const Strategy strategy : strategies) {
    Plan& plan = job.plans.emplace_back(base);
    plan.strategy = strategy;
    if (info_of(strategy).one_rank && !flags.gpus && !planned) plan.gpus = 1;
    if (flags.global_batch) take_global_batch(*flags.global_batch, flags.knobs, plan);
    check_plan(plan, job.model, job.profile.cluster.gpus_per_node);
  }
  return job;
}

}  // namespace

sim::Job resolve_base(const PlanFlags& flags) {
  if (flags.plan_file) return base_on(flags, read_plan(*flags.plan_file), true);
  PlanDocument defaults;
  defaults.plan.ckpt_layers = 0;
  return base_on(flags, defaults, false);
}

sim::Job resolve(const PlanFlags& flags) {
  return with_flags(flags, resolve_base(flags), flags.plan_file.has_value());
}

sim::Job resolve_onto(const PlanFlags& flags, const PlanDocument& document) {
  return with_flags(flags, base_on(flags, document, true), true);
}

}  // namespace shardwright::cli
