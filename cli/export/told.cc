// SPDX-License-Identifier: Apache-2.0
#include "cli/export/told.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "profiles/ledger/ledger_profile.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "sim/core/layout.h"
#include "sim/uncertainty/intervals.h"
#include "tuner/search/robustness.h"

namespace shardwright::cli {

namespace {

using S = Strategy;

/// What layers may recompute.
enum class Layers : std::uint8_t {
  kAny,             // any policy in any number of layers
  kFull,            // whole layers, any number
  kAllOrNone,       // whole layers, all or none
  kAllOrOperators,  // or the per-operator policy in all
};

struct Limits {
  std::vector<Strategy> strategies{};  // empty: all
  Layers layers = Layers::kAny;
  std::optional<DType> reduce_dtype{};
  bool chunks_loss = false, offloads = false, eight_bit = false, two_buffers = false;
  std::vector<Strategy> model_parallel{};  // of model-parallel plans; empty: there are none
  bool adapters_too = false;  // every plan of its space may train adapters, beside bf16 weights
  bool whole = false;         // takes every plan of its space
};

Limits limits_of(std::string_view name, bool adapters) {
  if (name == "torchtitan") {
    return {.strategies = {S::kFsdp2, S::kFsdp2NoReshard, S::kHsdp, S::kDdp},
            .layers = Layers::kAllOrOperators,
            .reduce_dtype = DType::kFp32,
            .chunks_loss = true,
            .model_parallel = {S::kFsdp2, S::kFsdp2NoReshard}};
  }
  if (name == "fsdp2") {
    return {
        .strategies = {S::kFsdp2, S::kFsdp2NoReshard}, .layers = Layers::kAny, .chunks_loss = true};
  }
  if (name == "megatron") {
    return {.chunks_loss = true,
            .offloads = true,
            .model_parallel = {S::kDistributedOptimizer, S::kMegatronFsdp},
            .adapters_too = true,
            .whole = true};
  }
  if (name == "accelerate" && adapters) {
    return {.strategies = {S::kDdp, S::kFsdp2, S::kFsdp2NoReshard},
            .layers = Layers::kAllOrNone,
            .chunks_loss = true,
            .offloads = true,
            .eight_bit = true};
  }
  if (name == "accelerate") {
    return {.strategies = {S::kFsdp2, S::kFsdp2NoReshard, S::kFsdp1, S::kFsdp1GradOp, S::kHsdp},
            .layers = Layers::kAllOrNone,
            .reduce_dtype = DType::kBf16};
  }
  if (name == "deepspeed") {
    return {.strategies = {S::kZero3, S::kZero2, S::kZero1},
            .layers = Layers::kAllOrNone,
            .offloads = true};
  }
  if (name == "yafsdp")
    return {
        .strategies = {S::kYafsdp, S::kYafsdpZero2}, .layers = Layers::kFull, .two_buffers = true};
  return {.chunks_loss = true, .whole = true};  // native
}

[[noreturn]] void cannot(const ToldFramework& framework, std::string_view knob,
                         std::string_view value, std::string_view expected) {
  throw InvalidPlan(fmt::format("{} is {}, which {} cannot be told, expected {}", knob, value,
                                framework.title, expected));
}

std::string names_of(const std::vector<Strategy>& strategies) {
  std::vector<std::string_view> names;
  for (const Strategy strategy : strategies) names.push_back(name_of(strategy));
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Those of `allowed` that the request leaves open.
std::vector<Strategy> common(const ToldFramework& framework, const std::vector<Strategy>& asked,
                             const std::vector<Strategy>& allowed) {
  if (allowed.empty()) return asked;
  if (asked.empty()) return allowed;
  std::vector<Strategy> both;
  std::copy_if(asked.begin(), asked.end(), std::back_inserter(both), [&](Strategy strategy) {
    return std::find(allowed.begin(), allowed.end(), strategy) != allowed.end();
  });
  if (both.empty()) cannot(framework, "strategy", names_of(asked), names_of(allowed));
  return both;
}

/// The policies for all layers, or none of them, that the request leaves open.
std::vector<Recompute> policies_of(Layers layers) {
  if (layers == Layers::kAllOrOperators)
    return {Recompute::kNone, Recompute::kSelectiveOp, Recompute::kFull};
  return {Recompute::kNone, Recompute::kFull};
}

std::vector<tuner::Request> recomputing(const ToldFramework& framework,
                                        const tuner::Request& request, Layers layers,
                                        std::int64_t model_layers) {
  if (layers == Layers::kAny) return {request};
  const auto asks = [&](Recompute policy, std::int64_t count) {
    const bool counts = !request.ckpt_layers || *request.ckpt_layers == count;
    return counts && (!request.recompute || request.recompute->recompute == policy);
  };
  std::vector<tuner::Request> requests;
  if (layers == Layers::kFull) {
    if (!request.recompute || request.recompute->recompute == Recompute::kFull ||
        request.recompute->recompute == Recompute::kNone) {
      tuner::Request whole = request;
      if (!whole.recompute) whole.recompute = Recomputation{Recompute::kFull, 0};
      requests.push_back(std::move(whole));
    }
  } else {
    for (const Recompute policy : policies_of(layers)) {
      const std::int64_t count = policy == Recompute::kNone ? 0 : model_layers;
      if (!asks(policy, count)) continue;
      tuner::Request one = request;
      one.recompute = Recomputation{policy, 0};
      one.ckpt_layers = count;
      requests.push_back(std::move(one));
    }
  }
  if (requests.empty()) {
    cannot(framework, "recomputation in some layers",
           request.ckpt_layers ? fmt::format("{} of {}", *request.ckpt_layers, model_layers)
                               : std::string("another policy"),
           "all layers or none");
  }
  return requests;
}

tuner::Request limited(const ToldFramework& framework, tuner::Request request,
                       const Limits& limits) {
  if (limits.reduce_dtype) {
    if (request.reduce_dtype && *request.reduce_dtype != *limits.reduce_dtype)
      cannot(framework, "reduce_dtype", name_of(*request.reduce_dtype),
             name_of(*limits.reduce_dtype));
    request.reduce_dtype = limits.reduce_dtype;
  }
  if (!limits.chunks_loss) {
    if (request.loss_chunks.value_or(1) > 1)
      cannot(framework, "loss_chunks", fmt::format("{}", *request.loss_chunks), "1");
    request.loss_chunks = 1;
  }
  if (limits.two_buffers) {
    if (request.buffers.value_or(2) != 2)
      cannot(framework, "buffers", fmt::format("{}", *request.buffers), "2");
    request.buffers = 2;
  }
  if (limits.adapters_too && request.parallel.quantize.value_or(Quantize::kNone) != Quantize::kNone)
    cannot(framework, "quantize", name_of(*request.parallel.quantize), "none");
  if (request.offload == Offload::kOptimizer && !limits.offloads)
    cannot(framework, "offload", "optimizer", "none");
  if (request.parallel.optimizer == Optimizer::kAdamw8bit && !limits.eight_bit)
    cannot(framework, "optimizer", "adamw-8bit", "adamw");
  return request;
}

/// Sizes that stay 1 where a framework shards data alone.
void keep_whole(const ToldFramework& framework, tuner::Request& request) {
  GivenParallelism& p = request.parallel;
  const auto one = [&](const char* name, std::optional<std::int64_t>& size) {
    if (size.value_or(1) != 1) cannot(framework, name, fmt::format("{}", *size), "1");
    size = 1;
  };
  one("tp", p.tp);
  one("pp", p.pp);
  one("cp", p.cp);
  one("ep", p.ep);
}

}  // namespace

const std::vector<ToldFramework>& told_frameworks() {
  static const std::vector<ToldFramework> all = {
      {"torchtitan", "torchtitan", "torchtitan", "torch-compile", ""},
      {"fsdp2", "a PyTorch script with FSDP2", "", "torch-compile", ""},
      {"megatron", "Megatron", "megatron-bridge", "megatron-core", "megatron-core"},
      {"accelerate", "Accelerate", "accelerate", "hf-eager", "hf-trainer"},
      {"deepspeed", "DeepSpeed", "deepspeed", "hf-eager", ""},
      {"yafsdp", "YaFSDP", "yafsdp", "hf-eager", ""},
      {"native", "this program", "", "native", ""}};
  return all;
}

const ToldFramework& told_framework(const std::string& name) {
  std::vector<std::string> names;
  for (const ToldFramework& framework : told_frameworks()) {
    if (framework.name == name) return framework;
    names.emplace_back(framework.name);
  }
  fail_word("--for", name, names);
}

std::string stack_of(const ToldFramework& framework, const tuner::Request& request) {
  if (!request.parallel.lora) return std::string(framework.stack);
  if (framework.adapters_on.empty()) {
    throw InvalidPlan(
        fmt::format("lora is {}, which {} cannot be told, expected accelerate or megatron",
                    *request.parallel.lora, framework.title));
  }
  return std::string(framework.adapters_on);
}

std::vector<std::string> overrides_of(const ToldFramework& framework) {
  // Accelerate's policy wraps the layers' class alone (cli/trainers).
  if (framework.name == "accelerate") return {"stack.wraps_embedding_and_head=false"};
  return {};
}

namespace {

/// Of Transformers' Trainer and those built on it, which have other optimizers than Accelerate.
std::vector<tuner::AskedPlans> trainer_requests(const tuner::Request& request, const Model& model) {
  const ToldFramework& trainer = told_framework("accelerate");
  const Limits limits = limits_of(trainer.name, true);
  tuner::Request one = request;
  one.strategies = request.gpus == 1 ? std::vector<Strategy>{S::kSingle}
                                     : common(trainer, request.strategies, limits.strategies);
  keep_whole(trainer, one);
  const tuner::Extent extent =
      tuner::features_of(one).any() ? tuner::Extent::kAll : tuner::Extent::kDataAlone;
  std::vector<tuner::AskedPlans> asked;
  for (tuner::Request& each : recomputing(trainer, one, limits.layers, model.layers))
    asked.push_back({std::move(each), extent});
  return asked;
}

}  // namespace

std::vector<tuner::AskedPlans> told_requests(const ToldFramework& framework,
                                             const tuner::Request& request, const Model& model) {
  const bool adapters = request.parallel.lora.has_value();
  const Limits limits = limits_of(framework.name, adapters);
  const tuner::Request plain = limited(framework, request, limits);
  const bool asks = tuner::features_of(request).any() || model.is_moe();
  const bool only_one = request.gpus == 1;
  std::vector<tuner::AskedPlans> asked;
  if (adapters && !limits.adapters_too) return trainer_requests(request, model);
  if (limits.whole) {
    tuner::Request one = plain;
    if (!request.strategies.empty())
      one.strategies = common(framework, request.strategies, limits.model_parallel);
    for (tuner::Request& each : recomputing(framework, one, limits.layers, model.layers))
      asked.push_back({std::move(each), tuner::Extent::kAll});
    return asked;
  }
  if (limits.model_parallel.empty()) {
    tuner::Request whole = plain;
    keep_whole(framework, whole);
  }
  if (!asks) {
    tuner::Request one = plain;
    one.strategies = only_one ? std::vector<Strategy>{S::kSingle}
                              : common(framework, request.strategies, limits.strategies);
    for (tuner::Request& each : recomputing(framework, one, limits.layers, model.layers))
      asked.push_back({std::move(each), tuner::Extent::kDataAlone});
  }
  if (!limits.model_parallel.empty() && !only_one) {
    tuner::Request one = plain;
    one.strategies = common(framework, request.strategies, limits.model_parallel);
    if (!one.parallel.cp_comm) one.parallel.cp_comm = ContextComm::kAllGather;
    for (tuner::Request& each : recomputing(framework, one, limits.layers, model.layers))
      asked.push_back({std::move(each), tuner::Extent::kModelParallel});
  }
  if (asked.empty()) {
    throw InvalidPlan(fmt::format(
        "{} shards data alone, but {}, expected torchtitan or megatron", framework.title,
        model.is_moe() ? "the model has experts" : "model parallelism is asked for"));
  }
  return asked;
}

namespace {

FrameworkPlan searched(const sim::Job& job, const ToldFramework& framework,
                       const std::string& stack, std::vector<tuner::AskedPlans> asked,
                       const FrameworkSearch& search) {
  FrameworkPlan plan;
  plan.framework = &framework;
  std::vector<std::string> overrides = job.overrides;
  for (std::string& value : overrides_of(framework)) overrides.push_back(std::move(value));
  plan.profile = profiles::make_profile(job.cluster_file, profiles::load_stack(stack), overrides);
  const std::int64_t gpus = asked.front().request.gpus;
  plan.profile.cluster = filled(std::move(plan.profile.cluster), gpus);
  plan.asked = std::move(asked);
  tuner::SearchOptions options = search.options;
  plan.headroom = search.headroom.value_or(sim::asked_headroom(plan.profile, gpus));
  options.criteria.headroom = plan.headroom;
  plan.found = tuner::best_of_requests(job.model, tuner::scenarios_of(plan.profile, search.robust),
                                       plan.asked, options);
  return plan;
}

}  // namespace

FrameworkPlan trainer_plan(const sim::Job& job, const tuner::Request& request,
                           const FrameworkSearch& search) {
  return searched(job, told_framework("accelerate"), profiles::usual_fine_tuning_stack(),
                  trainer_requests(request, job.model), search);
}

std::vector<FrameworkPlan> framework_plans(const sim::Job& job, const tuner::Request& request,
                                           const std::vector<const ToldFramework*>& frameworks,
                                           const FrameworkSearch& search) {
  std::vector<FrameworkPlan> plans;
  for (const ToldFramework* framework : frameworks) {
    std::vector<tuner::AskedPlans> asked;
    std::string stack;
    try {
      stack = stack_of(*framework, request);
      asked = told_requests(*framework, request, job.model);
    } catch (const InvalidPlan& error) {
      FrameworkPlan& refused = plans.emplace_back();
      refused.framework = framework;
      refused.found.refusal = error.what();
      continue;
    }
    plans.push_back(searched(job, *framework, stack, std::move(asked), search));
  }
  return plans;
}

const FrameworkPlan& best_of_frameworks(const std::vector<FrameworkPlan>& plans) {
  const FrameworkPlan* best = nullptr;
  for (const FrameworkPlan& plan : plans) {
    if (!plan.found.best) continue;
    if (best == nullptr || plan.found.best->score < best->found.best->score) best = &plan;
  }
  if (best != nullptr) return *best;
  for (const FrameworkPlan& plan : plans) {
    if (!plan.asked.empty() && plan.refusal().empty()) return plan;
  }
  throw InvalidPlan(plans.front().refusal());
}

tuner::Frameworks frameworks_for(const FrameworkPlan& plan) {
  tuner::Frameworks frameworks;
  frameworks.searched.push_back({&plan.profile, plan.headroom});
  return frameworks;
}

AsRun predict_as_run(const sim::Job& inputs, const TrainerSettings& settings) {
  if (!inputs.model.kinds.empty()) {
    throw Error(
        fmt::format("model '{}' {}, for which no trainer's settings are written, expected a "
                    "model whose layers are alike",
                    inputs.model.name, inputs.model.planning_only));
  }
  AsRun as_run{inputs, {}, {}};
  as_run.inputs.plans = {settings.as_run};
  try {
    std::vector<std::string>& overrides = as_run.inputs.overrides;
    overrides.insert(overrides.end(), settings.overrides.begin(), settings.overrides.end());
    as_run.inputs.profile = profiles::make_profile(
        inputs.cluster_file, profiles::load_stack(settings.as_run.stack), overrides);
    check_plan(settings.as_run, inputs.model, as_run.inputs.profile.cluster.gpus_per_node);
    as_run.prediction = sim::predict(inputs.model, as_run.inputs.profile, settings.as_run);
  } catch (const InvalidPlan& error) {
    as_run.refusal = error.what();
  }
  return as_run;
}

}  // namespace shardwright::cli
