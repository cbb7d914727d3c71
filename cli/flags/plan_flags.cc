// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/plan_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/machine/host_profile.h"
#include "cli/render/text/quantity.h"
#include "profiles/cluster_file.h"
#include "profiles/ledger/ledger.h"
#include "profiles/ledger/ledger_profile.h"
#include "profiles/prices/price.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "sim/core/executed_plan.h"
#include "sim/core/layout.h"
#include "sim/core/plan_json.h"
#include "tuner/advice/advice.h"

namespace shardwright::cli {

namespace {

const std::vector<std::string> kTasks = {"pretrain", "sft", "lora", "qlora"};

}  // namespace

TrainingTask parse_training_task(const std::string& word) {
  for (std::size_t i = 0; i < kTasks.size(); ++i) {
    if (word == kTasks[i]) return static_cast<TrainingTask>(i);
  }
  fail_word("--task", word, kTasks);
}

std::string training_task_words() {
  return fmt::format("{}", fmt::join(kTasks, "|"));
}

bool fine_tunes(const std::optional<TrainingTask>& task, const GivenKnobs& knobs) {
  return task.value_or(TrainingTask::kPretrain) != TrainingTask::kPretrain ||
         knobs.parallel.lora.has_value();
}

std::string usual_length_words(const Model& model, bool fine_tunes) {
  const auto tokens = [](std::int64_t count) { return thousands(count); };
  const std::int64_t usual = usual_seq_len(model, fine_tunes);
  std::string from = "from the model";
  if (usual < model.max_positions)
    from = fine_tunes ? "usual to fine-tune"
                      : fmt::format("of the {} that the model takes", tokens(model.max_positions));
  return fmt::format("sequence length {}, {}", tokens(usual), from);
}

void take_task(TrainingTask task, GivenKnobs& knobs) {
  GivenParallelism& given = knobs.parallel;
  if (task == TrainingTask::kPretrain || task == TrainingTask::kSft) return;
  if (!given.lora) given.lora = tuner::kUsualLoraRank;
  if (task == TrainingTask::kQlora && !given.quantize) given.quantize = Quantize::kNf4;
}

void check_task(const std::optional<TrainingTask>& task, const GivenKnobs& knobs) {
  if (!task) return;
  const GivenParallelism& given = knobs.parallel;
  const std::string& name = kTasks[static_cast<std::size_t>(*task)];
  const bool adapters = *task == TrainingTask::kLora || *task == TrainingTask::kQlora;
  if (!adapters && given.lora)
    throw Error(fmt::format("--task is {}, but --lora is {}, expected --task lora or qlora.", name,
                            *given.lora));
  const bool quantized = given.quantize.value_or(Quantize::kNone) != Quantize::kNone;
  if (*task == TrainingTask::kLora && quantized)
    throw Error(fmt::format("--task is lora, but --quantize is {}, expected --task qlora.",
                            name_of(*given.quantize)));
  if (*task == TrainingTask::kQlora && !quantized)
    throw Error("--task is qlora, but --quantize is none, expected nf4, int8 or fp8.");
}

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
std::string described(const PlanKnob& knob, bool searched) {
  const std::string_view otherwise = searched && knob.is(kSearched) ? "searched" : knob.otherwise;
  return otherwise.empty() ? knob.what : fmt::format("{} (default: {})", knob.what, otherwise);
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
  text("--model", model, "NAME|PATH", "a built-in model, or a Hugging Face config.json or folder");
  text("--cluster", cluster, "NAME|PATH", "a shipped cluster (see inspect clusters) or a file");
  command.add("--gpus", gpus, "GPUs in all (default: one node)", {1, 1 << 20}).group(kWhat);
  command
      .add_parsed(
          "--task",
          [this](const std::string& word) {
            task = parse_training_task(word);
            take_task(*task, knobs);
          },
          "what is trained: every weight (pretrain, sft), adapters of rank 16 (lora), or these "
          "over "
          "weights in nf4 (qlora); fine-tuning runs on hf-trainer unless --stack says otherwise")
      .type_name(training_task_words())
      .group(kWhat);
  for (const PlanKnob& knob : plan_knobs()) {
    if (!knob.read) continue;
    const std::string flag = fmt::format("--{}", knob.name);
    const auto take = [this, &knob, flag](const std::string& word) {
      knob.read(knobs, flag, word);
    };
    command.add_parsed(flag, take, described(knob, searched)).type_name(knob.type).group(kWhat);
  }
  if (!searched) {
    command
        .add("--global-batch", global_batch, "sequences of a step: decides --grad-accum",
             {1, 1 << 30})
        .group(kWhat);
  }
  text("--stack", stack, "NAME|PATH",
       "the framework that executes (see inspect stacks; default: torch-compile on GPUs, native on "
       "processors, megatron-core for models with experts and for what the others do not do)");
  command.add("--set", overrides, "override a value of the profile by its path; repeatable")
      .type_name("KEY=VALUE")
      .repeatable()
      .group(kWhat);
  command
      .add_parsed(
          "--node-network",
          [this](const std::string& word) {
            node_network = profiles::parse_network_rate("--node-network", word);
          },
          "what a whole node sends to others, such as 400Gb/s (default: the cluster's)")
      .type_name("RATE")
      .group(kWhat);
  command
      .add("--power-limit-watts", power_limit_watts,
           "cap of each GPU's board power, as nvidia-smi --power-limit sets it: lower clocks "
           "(default: that of its data sheet)",
           {1, 1e5})
      .group(kWhat);
  text("--plan", plan_file, "FILE",
       searched ? "take model, cluster, batch and the like from a plan that tune wrote"
                : "start from a plan that tune wrote; flags on the command line change it");
}

namespace {

/// Flags alone move nobody to another framework as long as the usual one does what they ask for.
bool usual_stack_does(const GivenKnobs& knobs, const Model& model, const std::string& stack) {
  if (model.is_moe()) return false;
  Plan asked;
  take_parallelism(knobs.parallel, asked);
  const auto bucketed = [](Strategy strategy) { return info_of(strategy).bucketed; };
  const std::vector<Strategy>& named = knobs.strategies;
  if (!named.empty() && std::all_of(named.begin(), named.end(), bucketed)) return false;
  return beyond(asked, profiles::load_stack(stack).stack.parallel.features()).empty();
}

/// `planned`: `file` is the plan to change, not a set of defaults.
sim::Job base_on(const PlanFlags& flags, const PlanDocument& file, bool planned) {
  require("--model", flags.model, file.model, "llama-3-70b");
  require("--cluster", flags.cluster, file.cluster, "dgx-h100");
  sim::Job job = sim::job_of(file, flags.plan_file.value_or(""), flags.model, flags.cluster);
#ifndef SHARDWRIGHT_PLANNER_ONLY
  // The machine that this runs on, as `run` predicts its steps.
  if (job.cluster_name == kHostCluster && (flags.cluster || file.cluster_file.empty()))
    job.cluster_file = host_cluster();
#endif
  Plan plan = file.plan;
  check_task(flags.task, flags.knobs);
  const Cluster& machine = job.cluster_file.cluster;
  const bool fine = fine_tunes(flags.task, flags.knobs);
  if (!planned) {
    plan.stack = fine && !machine.gpu.is_processor() ? profiles::usual_fine_tuning_stack()
                                                     : profiles::usual_stack(machine);
    if (!fine && !usual_stack_does(flags.knobs, job.model, plan.stack))
      plan.stack = profiles::usual_model_parallel_stack();
  }
  plan.stack = flags.stack.value_or(plan.stack);
  job.overrides = file.overrides;
  if (flags.node_network) {
    for (std::string& value :
         profiles::node_network_overrides(job.cluster_file.cluster, *flags.node_network))
      job.overrides.push_back(std::move(value));
  }
  job.overrides.insert(job.overrides.end(), flags.overrides.begin(), flags.overrides.end());
  job.profile =
      profiles::make_profile(job.cluster_file, profiles::load_stack(plan.stack), job.overrides);
  if (flags.power_limit_watts) {
    for (std::string& value : profiles::power_limit_overrides(job.profile, profiles::load_energy(),
                                                              *flags.power_limit_watts))
      job.overrides.push_back(std::move(value));
    job.profile =
        profiles::make_profile(job.cluster_file, profiles::load_stack(plan.stack), job.overrides);
  }
  if (!planned) {
    const Cluster& cluster = job.profile.cluster;
    plan.gpus = cluster.devices_per_node > 0 ? cluster.devices_per_node : cluster.gpus_per_node;
    plan.seq_len = usual_seq_len(job.model, fine);
    if (!flags.knobs.seq_len) job.usual_length = usual_length_words(job.model, fine);
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
    // Model-parallel frameworks shards the optimizer over its replicas.
    const bool own = !planned && job.profile.stack.optimizer.bucketed;
    strategies = {own ? Strategy::kDistributedOptimizer : base.strategy};
  }
  job.plans.clear();
  for (const Strategy strategy : strategies) {
    Plan& plan = job.plans.emplace_back(base);
    plan.strategy = strategy;
    if (info_of(strategy).one_rank && !flags.gpus && !planned) plan.gpus = 1;
    if (flags.global_batch) take_global_batch(*flags.global_batch, flags.knobs, plan);
    plan = profiles::without_defaults(std::move(plan), job.model, job.profile.stack);
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

const Plan& only_plan(const sim::Job& job, std::string_view verb) {
  if (job.plans.size() != 1) {
    throw Error(
        fmt::format("--strategy names {} strategies, but {} takes one.", job.plans.size(), verb));
  }
  return job.plans.front();
}

}  // namespace shardwright::cli
