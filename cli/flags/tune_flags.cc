// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/tune_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cli/export/told.h"
#include "profiles/ledger/ledger_profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/layout.h"
#include "sim/uncertainty/intervals.h"
#include "tuner/advice/advice.h"

namespace shardwright::cli {

namespace {

constexpr const char* kReduce = "bf16-reduce";
constexpr const char* kMaster = "bf16-master";
constexpr const char* kMoments = "bf16-moments";
constexpr const char* kSoftware = "software";
constexpr std::array kPrecisions = {Precision::kFp8, Precision::kNvfp4};

tuner::Objective parse_objective(const std::string& word) {
  const std::optional<tuner::Objective> objective = tuner::objective_from(word);
  if (!objective) fail_word("--objective", word, tuner::objective_names());
  return *objective;
}

std::vector<std::string> allowed_words() {
  std::vector<std::string> words{kReduce, kMaster, kMoments};
  for (const Precision precision : kPrecisions) words.emplace_back(name_of(precision));
  words.emplace_back(name_of(Optimizer::kAdamw8bit));
  words.emplace_back(kSoftware);
  return words;
}

void parse_allowed(const std::string& text, TuneFlags& flags) {
  for (const std::string& word : split_commas(text)) {
    const auto precision = from_word<Precision>(word);
    if (word == kReduce) {
      flags.allow_bf16_reduce = true;
    } else if (word == kMaster) {
      flags.allow_bf16_master = true;
    } else if (word == kMoments) {
      flags.allow_bf16_moments = true;
    } else if (word == kSoftware) {
      flags.allow_software = true;
    } else if (word == name_of(Optimizer::kAdamw8bit)) {
      flags.allowed_optimizers.push_back(Optimizer::kAdamw8bit);
    } else if (precision &&
               std::find(kPrecisions.begin(), kPrecisions.end(), *precision) != kPrecisions.end()) {
      flags.allowed_precisions.push_back(*precision);
    } else {
      fail_word("--allow", word, allowed_words());
    }
  }
}

void refuse_contradiction(bool allowed, const char* word, std::optional<DType> fixed,
                          const char* flag) {
  if (!allowed || !fixed) return;
  throw Error(
      fmt::format("--allow {} leaves the choice to the search, but {} is {}; leave one of "
                  "them out.",
                  word, flag, name_of(*fixed)));
}

}  // namespace

double parse_headroom(const std::string& text) {
  std::string number = text;
  double unit = 1;
  if (number.ends_with('%')) {
    number.pop_back();
    while (number.ends_with(' ')) number.pop_back();
    unit = 0.01;
  }
  const std::optional<double> value = parse_double(number);
  if (!value || *value < 0 || *value * unit >= 1) {
    throw Error(fmt::format(
        "--headroom is '{}', but it must be a share of the memory, such as 5% or 0.05.", text));
  }
  return *value * unit;
}

void TuneFlags::declare(Command& command) {
  plan.declare(command, true);
  command.add("--global-batch", global_batch,
              "sequences per optimizer step on all GPUs (default: whatever is best)", {1, 1 << 30});
  command
      .add_parsed(
          "--objective", [this](const std::string& word) { objective = parse_objective(word); },
          "what is best: the least time or GPU dollars a token, or the most memory left "
          "(default: time)")
      .type_name(fmt::format("{}", fmt::join(tuner::objective_names(), "|")));
  command
      .add_parsed(
          "--headroom", [this](const std::string& text) { headroom = parse_headroom(text); },
          "memory to keep free, such as 5%; 0 takes the last byte (default: what the interval of "
          "memory asks)")
      .type_name("SHARE");
  command
      .add_parsed(
          "--allow", [this](const std::string& words) { parse_allowed(words, *this); },
          fmt::format("changes of the arithmetic that the search may make, joined by commas, and "
                      "software for settings beyond its usual ones, such as userbuffers or other "
                      "dispatchers: {} (default: none)",
                      fmt::join(allowed_words(), ", ")))
      .type_name("WHAT");
  std::vector<std::string_view> names;
  for (const ToldFramework& framework : told_frameworks()) names.push_back(framework.name);
  command
      .add_parsed(
          "--for",
          [this](const std::string& words) {
            for (const std::string& word : split_commas(words))
              frameworks.emplace_back(told_framework(word).name);
          },
          fmt::format("stay in what these frameworks can be told: {} (default: any; every answer "
                      "has a line for each)",
                      fmt::join(names, ", ")))
      .type_name("NAME[,NAME]");
  command.add("--robust", robust,
              "the best in the worst case of: as predicted, memory 5 % above it, bandwidth "
              "20 % below it");
  command.add("--recompute-for-speed", recompute_for_speed,
              "on PyTorch's stacks, recompute more layers than memory requires where the "
              "simulation finds that faster");
  command.add("--threads", threads, "threads of the search (default: one for each core)",
              {1, 1024});
  constexpr double kYear_s = 365.0 * 24 * 3600;
  command
      .add("--time-limit", time_limit,
           "seconds after which the search ends with the best plan so far, once what it is at is "
           "done (default: when it is proven)",
           {1e-3, kYear_s})
      .type_name("S");
}

namespace {

/// What the plan of a file multiplies in and its optimizer are part of the job.
void hold_numerics(const Numerics& numerics, GivenParallelism& held) {
  if (!held.precision && numerics.precision != Precision::kBf16) {
    held.precision = numerics.precision;
    held.fp8_recipe = numerics.fp8_recipe;
    held.fp8_params = numerics.fp8_params;
  }
  if (!held.optimizer && numerics.optimizer != Optimizer::kAdamw)
    held.optimizer = numerics.optimizer;
  if (!held.lora && numerics.lora > 0) held.lora = numerics.lora;
  if (!held.quantize && numerics.quantize != Quantize::kNone) held.quantize = numerics.quantize;
}

}  // namespace

tuner::Request request_of(const TuneFlags& flags, const sim::Job& job) {
  const GivenKnobs& knobs = flags.plan.knobs;
  const Plan& plan = job.plans.front();
  refuse_contradiction(flags.allow_bf16_reduce, kReduce, knobs.reduce_dtype, "--reduce-dtype");
  refuse_contradiction(flags.allow_bf16_master, kMaster, knobs.master_dtype, "--master-dtype");
  refuse_contradiction(flags.allow_bf16_moments, kMoments, knobs.moment_dtype, "--moment-dtype");
  tuner::Request request = tuner::request_holding(knobs, job.model);
  request.gpus = plan.gpus;
  request.seq_len = plan.seq_len;
  request.stack = plan.stack;
  request.global_batch = flags.global_batch;
  request.allow_bf16_reduce = flags.allow_bf16_reduce;
  request.allow_bf16_master = flags.allow_bf16_master;
  request.allow_bf16_moments = flags.allow_bf16_moments;
  request.allowed_precisions = flags.allowed_precisions;
  request.allowed_optimizers = flags.allowed_optimizers;
  request.allow_software = flags.allow_software;
  const bool batch_is_given =
      flags.global_batch || flags.plan.plan_file || (knobs.micro_batch && knobs.grad_accum);
  if (fine_tunes(flags.plan.task, knobs) && !batch_is_given)
    request.global_batch = tuner::fine_tuning_batch(request.gpus);
  if (flags.plan.plan_file) {
    request.adapters_seq_len.reset();
    // The job of the file; its knobs are what is searched.
    if (!knobs.param_dtype) request.param_dtype = plan.param_dtype;
    if (!knobs.master_dtype && !flags.allow_bf16_master) request.master_dtype = plan.master_dtype;
    hold_numerics(plan.numerics, request.parallel);
    request.offload = plan.offload;
    const bool sets_batch = flags.global_batch || knobs.micro_batch || knobs.grad_accum;
    if (!sets_batch && !flags.plan.gpus) {
      request.global_batch =
          plan.gpus / plan.parallel.replica() * plan.micro_batch * plan.grad_accum;
    }
  }
  return request;
}

namespace {

profiles::Profile profile_of(const sim::Job& job, const std::string& stack, std::int64_t gpus) {
  profiles::Profile profile =
      profiles::make_profile(job.cluster_file, profiles::load_stack(stack), job.overrides);
  profile.cluster = filled(std::move(profile.cluster), gpus);
  return profile;
}

}  // namespace

tuner::Frameworks FrameworkCandidates::frameworks(std::optional<double> headroom,
                                                  std::int64_t gpus) const {
  tuner::Frameworks result;
  for (const profiles::Profile& one : searched)
    result.searched.push_back({&one, headroom.value_or(sim::asked_headroom(one, gpus))});
  result.refusal = refusal;
  return result;
}

FrameworkCandidates candidates_of(const PlanFlags& flags, const sim::Job& job,
                                  const tuner::Request& request) {
  FrameworkCandidates candidates;
  const profiles::Profile& named = job.profile;
  candidates.searched.push_back(named);
  // Who fine-tunes stays in the framework that is usual for it.
  const bool is_named = flags.stack || flags.plan_file || named.stack.optimizer.bucketed ||
                        fine_tunes(flags.task, flags.knobs);
  const bool asked = tuner::features_of(request).any();
  const bool moe = job.model.is_moe();
  const bool alone = request.gpus == 1 || named.cluster.devices_per_node > 0;
  if (!is_named && (asked || moe || !(alone || tuner::holds_sharding(request)))) {
    candidates.searched.push_back(
        profile_of(job, profiles::usual_model_parallel_stack(), request.gpus));
  }
  if (moe && !asked && !named.stack.optimizer.bucketed && !fine_tunes(flags.task, flags.knobs))
    candidates.refusal = "its engine predicts no experts";
  return candidates;
}

}  // namespace shardwright::cli
