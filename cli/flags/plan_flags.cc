#include "cli/flags/plan_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "profiles/data_dir.h"
#include "sim/core/error.h"
#include "sim/core/hf_config.h"
#include "sim/core/nearest.h"
#include "sim/core/parse_number.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

constexpr const char* kWhat = "What, on what, how";
constexpr CountRange kKnob{1, std::numeric_limits<int>::max()};

/// A flag that takes one of some words.
template <typename Value, typename Parse>
void add_word(Command& command, const std::string& flag, std::optional<Value>& value,
              const std::string& description, Parse parse, std::vector<std::string> words) {
  command
      .add_parsed(
          flag,
          [&value, flag, parse, words](const std::string& word) {
            value = parse(word);
            if (!value) fail_word(flag, word, words);
          },
          description)
      .type_name(fmt::format("{}", fmt::join(words, "|")))
      .group(kWhat);
}

std::vector<Strategy> parse_strategies(const std::string& text) {
  std::vector<Strategy> strategies;
  for (const std::string& word : split_commas(text)) {
    const std::optional<Strategy> strategy = strategy_from(word);
    if (!strategy) fail_word("--strategy", word, strategy_names());
    if (std::find(strategies.begin(), strategies.end(), *strategy) != strategies.end()) {
      throw Error(fmt::format("--strategy is '{}', but it names {} twice.", text, word));
    }
    strategies.push_back(*strategy);
  }
  return strategies;
}

CheckpointedLayers parse_checkpointed(const std::string& text) {
  if (text == "all") return {.all = true};
  const std::optional<std::int64_t> count = parse_int64(text);
  if (!count || *count < 0) {
    throw Error(fmt::format(
        "--ckpt-layers is '{}', but it must be a whole number of at least 0, or all.", text));
  }
  return {.count = *count};
}

/// Which layers recompute what. A number without a policy means full recomputation, a policy
/// without a number all layers, and 0 layers no recomputation.
void apply_recompute(const PlanFlags& flags, std::int64_t layers, Plan& plan) {
  if (flags.recompute) {
    try {
      set_recompute(plan, *flags.recompute);
    } catch (const Error& error) {
      throw Error(fmt::format("--{}.", error.what()));
    }
    if (plan.recompute == Recompute::kNone)
      plan.ckpt_layers = 0;
    else if (plan.ckpt_layers == 0)
      plan.ckpt_layers = layers;
  }
  if (flags.ckpt_layers) {
    plan.ckpt_stride = 1;
    plan.ckpt_layers = flags.ckpt_layers->all ? layers : flags.ckpt_layers->count;
    if (plan.ckpt_layers > 0 && plan.recompute == Recompute::kNone && !flags.recompute) {
      plan.recompute = Recompute::kFull;
    }
  }
  if (plan.ckpt_layers == 0) {
    plan.recompute = Recompute::kNone;
    plan.pieces = 0;
  }
}

template <typename Value, typename Target>
void apply(const std::optional<Value>& given, Target& target) {
  if (given) target = static_cast<Target>(*given);
}

Plan plan_for(const PlanFlags& flags, Plan plan, const Model& model) {
  apply(flags.micro_batch, plan.micro_batch);
  apply(flags.grad_accum, plan.grad_accum);
  apply(flags.shard_group, plan.shard_group);
  if (flags.buffers) {
    plan.buffers = static_cast<int>(*flags.buffers);
    plan.prefetch = plan.buffers - 1;
  }
  apply(flags.prefetch, plan.prefetch);
  apply(flags.param_dtype, plan.param_dtype);
  apply(flags.reduce_dtype, plan.reduce_dtype);
  apply(flags.moment_dtype, plan.moment_dtype);
  apply(flags.attention, plan.attention);
  apply_recompute(flags, model.layers, plan);
  return plan;
}

std::string required(std::string_view flag, const std::optional<std::string>& given,
                     const std::string& from_file, std::string_view example) {
  if (given && !given->empty()) return *given;
  if (!given && !from_file.empty()) return from_file;
  throw Error(
      fmt::format("{} is missing: give a shipped name such as {}, or a path.", flag, example),
      ExitCode::kUsage);
}

}  // namespace

void PlanFlags::declare(Command& command, bool searched) {
  const auto knob = [searched](const char* what, const char* otherwise) {
    return fmt::format("{} (default: {})", what, searched ? "searched" : otherwise);
  };
  const auto text = [&](const char* flag, std::optional<std::string>& value, const char* type,
                        const std::string& description) {
    command.add(flag, value, description).type_name(type).group(kWhat);
  };
  const auto count = [&](const char* flag, std::optional<std::int64_t>& value,
                         const std::string& description, CountRange range) {
    command.add(flag, value, description, range).group(kWhat);
  };
  text("--model", model, "NAME|PATH", "a built-in model, or a Hugging Face config.json or folder");
  text("--cluster", cluster, "NAME|PATH", "a shipped cluster (see inspect clusters) or a file");
  count("--gpus", gpus, "GPUs in all (default: one node)", {1, 1 << 20});
  count("--seq-len", seq_len, "tokens of a sequence (default: 2048)", {1, 1 << 24});
  count("--micro-batch", micro_batch, knob("sequences per GPU at a time", "1"), {1, 1 << 20});
  count("--grad-accum", grad_accum, knob("micro-steps per optimizer step", "1"), {1, 1 << 20});
  command
      .add_parsed(
          "--strategy", [this](const std::string& words) { strategies = parse_strategies(words); },
          searched ? fmt::format("{}; several joined by commas (default: all are searched)",
                                 fmt::join(strategy_names(), ", "))
                   : fmt::format("{}; several, joined by commas, are compared (default: yafsdp)",
                                 fmt::join(strategy_names(), ", ")))
      .type_name("NAME[,NAME]")
      .group(kWhat);
  count("--shard-group", shard_group, "GPUs that share one copy of the parameters", {1, 1 << 20});
  command
      .add_parsed(
          "--ckpt-layers",
          [this](const std::string& words) { ckpt_layers = parse_checkpointed(words); },
          knob("checkpoint the first K layers, or all; 0 recomputes nothing", "0"))
      .type_name("K|all")
      .group(kWhat);
  text(
      "--recompute", recompute, "WHAT",
      knob("what checkpointed layers recompute: none, full, selective-op, or some of norm, swiglu, "
           "ffn, attention, block joined by commas",
           "full"));
  const std::vector<std::string> dtypes = {"fp32", "bf16"};
  add_word(command, "--param-dtype", param_dtype, "compute and gather (default: bf16)", dtype_from,
           dtypes);
  add_word(command, "--reduce-dtype", reduce_dtype, "gradient reduction (default: fp32)",
           dtype_from, dtypes);
  add_word(command, "--moment-dtype", moment_dtype, "Adam's moments (default: fp32)", dtype_from,
           dtypes);
  count("--buffers", buffers, knob("rotating gather buffers of yafsdp", "2"), kKnob);
  count("--prefetch", prefetch, "units gathered ahead, at most buffers - 1 (default: all)",
        {0, kKnob.most});
  add_word(command, "--attention", attention, knob("attention kernel", "flash"), attention_from,
           {"flash", "eager"});
  text("--stack", stack, "NAME|PATH",
       "the software that executes (see inspect stacks; default: native)");
  command.add("--set", overrides, "override a value of the profile by its path; repeatable")
      .type_name("KEY=VALUE")
      .repeatable()
      .group(kWhat);
  text("--plan", plan_file, "FILE",
       searched ? "take model, cluster, batch and the like from a plan that tune wrote"
                : "start from a plan that tune wrote; flags on the command line change it");
}

Job resolve_job(const PlanFlags& flags) {
  PlanDocument file;
  if (flags.plan_file) {
    file = read_plan(*flags.plan_file);
  } else {
    file.plan.ckpt_layers = 0;
  }
  Job job;
  job.model_name = required("--model", flags.model, file.model, "llama-3-70b");
  job.cluster_name = required("--cluster", flags.cluster, file.cluster, "dgx-h100");
  job.model = load_model(profiles::data_dir() / "models", job.model_name);
  job.plan = file.plan;
  apply(flags.stack, job.plan.stack);
  job.overrides = file.overrides;
  job.overrides.insert(job.overrides.end(), flags.overrides.begin(), flags.overrides.end());
  job.profile = profiles::load_profile(job.cluster_name, job.plan.stack, job.overrides);
  if (!flags.plan_file) {
    const Cluster& cluster = job.profile.cluster;
    job.plan.gpus = cluster.devices_per_node > 0 ? cluster.devices_per_node : cluster.gpus_per_node;
    job.plan.seq_len = std::min(job.plan.seq_len, job.model.max_positions);
    if (job.model.sliding_window > 0) {
      job.plan.seq_len = std::min(job.plan.seq_len, job.model.sliding_window);
    }
  }
  apply(flags.gpus, job.plan.gpus);
  apply(flags.seq_len, job.plan.seq_len);
  return job;
}

PlanInputs resolve(const PlanFlags& flags) {
  Job job = resolve_job(flags);
  PlanInputs inputs{std::move(job.model_name), std::move(job.cluster_name), std::move(job.model),
                    std::move(job.profile),    std::move(job.overrides),    {}};
  std::vector<Strategy> strategies = flags.strategies;
  if (strategies.empty()) strategies = {job.plan.strategy};
  for (const Strategy strategy : strategies) {
    Plan plan = plan_for(flags, job.plan, inputs.model);
    if (info_of(strategy).one_rank && !flags.gpus && !flags.plan_file) plan.gpus = 1;
    plan.strategy = strategy;
    check_plan(plan, inputs.model, inputs.profile.cluster.gpus_per_node);
    inputs.plans.push_back(std::move(plan));
  }
  return inputs;
}

}  // namespace shardwright::cli
