// SPDX-License-Identifier: Apache-2.0
#include "cli/run/job_facts.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/render/text/quantity.h"
#include "exec/train/data/mapped_file.h"
#include "exec/train/safetensors.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/executed_plan.h"
#include "sim/core/hf/config.h"

namespace shardwright::cli {

namespace {

namespace fs = std::filesystem;

/// Settings that a rank may have for itself: paths, whose contents count, and what only rank 0 or
/// the rank's own machine does.
constexpr std::array<std::string_view, 12> kOfOneRank = {
    "plan", "model",   "data",       "out",         "overwrite", "log-every",
    "nvtx", "cluster", "rendezvous", "cpu-binding", "threads",   "tokenizer"};

/// Paths of which all ranks have one or none.
constexpr std::array<std::string_view, 4> kGivenOrNot = {"weights", "eval-data", "resume", "trace"};

/// Keys that may move when a run goes on and change nothing of what is computed, or have notes of
/// their own (resume_notes()). Data and model may not move; all others are said.
constexpr std::array<std::string_view, 38> kMovesUnsaid = {
    "ranks",          "strategy",      "shard-group",    "tp",          "sp",           "pp",
    "virtual-stages", "pp-schedule",   "pp-layout",      "rank-order",  "sum-shape",    "seq-len",
    "micro-batch",    "grad-accum",    "ckpt-layers",    "recompute",   "buffers",      "prefetch",
    "steps",          "eval-every",    "eval-sequences", "save-every",  "keep",         "save",
    "save-patience",  "tensorboard",   "trace-step",     "trace-steps", "trace",        "resume",
    "weights",        "communicator",  "collective-sms", "clock",       "rank-timeout", "streams",
    "network",        "rank-processes"};

/// Keys of a config.json that name things.
constexpr std::array<std::string_view, 7> kFactNames = {
    "dtype",        "torch_dtype",  "transformers_version", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id"};

constexpr std::string_view kData = "crc32 of the data", kSequences = "sequences of the data";
constexpr std::string_view kOfConfig = "config.", kOfPlan = "plan.";

/// Into which sequences the training data fall.
constexpr std::array<std::string_view, 5> kDivideData = {"seq-len", "format", "documents",
                                                         "eval-data", "hold-out"};

template <std::size_t N>
bool is_among(const std::array<std::string_view, N>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

exec::JobFacts facts_of_config(const std::string& text) {
  exec::JobFacts facts;
  const nlohmann::json config = parse_json(text);
  for (const auto& [key, value] : config.items()) {
    if (key.starts_with('_') || is_among(kFactNames, key)) continue;
    facts.push_back({fmt::format("{}{}", kOfConfig, key), value.dump()});
  }
  return facts;
}

/// What of a model a run that goes on computes with.
Model arithmetic_of(Model model) {
  model.name.clear();
  model.dropout.clear();
  model.ignored_keys.clear();
  model.initial_deviation = 0;
  return model;
}

std::string sums_of(const std::vector<std::string>& files) {
  std::vector<std::string> sums;
  for (const std::string& file : files)
    sums.push_back(fmt::format("{:08x}", exec::crc32_of_file(file, cache_folder("data"))));
  return fmt::format("{}", fmt::join(sums, " "));
}

std::string or_nothing(const std::string& value) {
  return value.empty() ? "nothing" : value;
}

using BeforeAndNow = std::pair<std::string, std::string>;

std::string moved_text(std::string_view key, const BeforeAndNow& values) {
  return fmt::format("{} {} (now {})", key, or_nothing(values.first), or_nothing(values.second));
}

/// Keys of either whose values differ, with the values before and now.
std::map<std::string, BeforeAndNow, std::less<>> differences(const exec::JobFacts& before,
                                                             const exec::JobFacts& now) {
  std::map<std::string, BeforeAndNow, std::less<>> all;
  for (const exec::JobFact& fact : before) all[fact.key].first = fact.value;
  for (const exec::JobFact& fact : now) all[fact.key].second = fact.value;
  std::erase_if(all, [](const auto& entry) { return entry.second.first == entry.second.second; });
  return all;
}

}  // namespace

fs::path cache_folder(const char* name) {
  const auto folder = [name](const char* variable, const char* within) -> fs::path {
    const char* value = std::getenv(variable);
    return value == nullptr || *value != '/' ? fs::path() : fs::path(value) / within / name;
  };
  const fs::path own = folder("XDG_CACHE_HOME", "shardwright");
  return own.empty() ? folder("HOME", ".cache/shardwright") : own;
}

void decide_job(RunOptions& options, const RunSettings& settings, const exec::Data* data) {
  exec::JobFacts& facts = options.facts;
  facts = {{"version", options.train.tool_version}};
  for (const SettingInfo& info : setting_table()) {
    const RunSetting& setting = settings.at(info.key);
    if (!info.shown() || is_among(kOfOneRank, info.key)) continue;
    const bool is_path = is_among(kGivenOrNot, info.key) && !setting.value.empty();
    facts.push_back({info.key, is_path ? "given" : setting.value, setting.origin});
  }
  if (data != nullptr) {
    facts.push_back({std::string(kData), sums_of(data->files)});
    facts.push_back({std::string(kSequences), fmt::format("{:08x}", data->train->fingerprint())});
    if (data->eval)
      facts.push_back({"evaluation data", fmt::format("{:08x}", data->eval->fingerprint())});
  }
  options.train.job = facts;  // a checkpoint has model and plan
  if (options.train.weights != nullptr && options.launch.ranks > 1) {
    facts.push_back({"crc32 of the weights", sums_of(options.train.weights->files())});
  }
  for (exec::JobFact& fact : facts_of_config(options.config)) facts.push_back(std::move(fact));
  const auto plan = plan_to_json(options.plan);
  for (const auto& [key, value] : plan.items())
    facts.push_back({fmt::format("{}{}", kOfPlan, key), value.dump()});
  options.train.job_hash = exec::hash_of(facts);
}

exec::OnWorld agreement(const RunOptions& options) {
  return [&options](exec::Communicator& world) {
    exec::require_agreement(world, options.facts);
    if (world.rank() == 0 && options.on_agreement) options.on_agreement();
  };
}

void require_same_job(const RunOptions& options, const exec::Checkpoint& resumed) {
  const exec::CheckpointManifest& before = resumed.manifest();
  const bool is_same_model = arithmetic_of(parse_hf_config(before.config, resumed.folder().string(),
                                                           "")) == arithmetic_of(options.model);
  std::vector<std::string> keys;
  for (const auto& [key, values] :
       differences(facts_of_config(before.config), facts_of_config(options.config))) {
    keys.push_back(moved_text(key.substr(kOfConfig.size()), values));
  }
  if (!is_same_model) {
    throw Error(
        fmt::format("{}: made for another model, with {}; expected its own config.json, or "
                    "--weights, which begins anew with another",
                    resumed.folder().string(), fmt::join(keys, ", ")));
  }
  const auto moved = differences(before.job, options.train.job);
  if (const auto data = moved.find(kData); data != moved.end() && !data->second.first.empty()) {
    throw Error(fmt::format("{}: made with other training data: {} was {}, now it is {}",
                            resumed.folder().string(), kData, data->second.first,
                            or_nothing(data->second.second)));
  }
  std::vector<std::string> dividing;
  for (const std::string_view key : kDivideData) {
    if (const auto at = moved.find(key); at != moved.end())
      dividing.push_back("--" + moved_text(key, at->second));
  }
  if (moved.contains(kSequences) && !dividing.empty()) {
    throw Error(
        fmt::format("{}: made with {}, which divides the data into other sequences; "
                    "expected the same, or --weights, which begins anew",
                    resumed.folder().string(), fmt::join(dividing, ", ")));
  }
}

std::vector<std::string> moved_facts(const RunOptions& options, const exec::Checkpoint& resumed) {
  std::vector<std::string> sentences;
  const exec::JobFacts& before = resumed.manifest().job;
  if (before.empty()) return sentences;
  for (const auto& [key, values] : differences(before, options.train.job)) {
    if (is_among(kMovesUnsaid, key)) continue;
    const bool is_setting =
        std::any_of(setting_table().begin(), setting_table().end(),
                    [&key = key](const SettingInfo& info) { return info.key == key; });
    sentences.push_back(fmt::format("{}{} is {}; in the run that is resumed it was {}",
                                    is_setting ? "--" : "", key, or_nothing(values.second),
                                    or_nothing(values.first)));
  }
  return sentences;
}

bool keep_sum_shape(RunOptions& options, const exec::Checkpoint& resumed) {
  const std::int64_t before = resumed.manifest().plan.feature_parts();
  if (options.plan.sum_features > 0 || options.plan.feature_parts() == before) return false;
  Plan kept = options.plan;
  kept.sum_features = before;
  try {
    check_plan(with_products_in_bf16(kept), options.model, kept.gpus);
  } catch (const InvalidPlan&) {
    return false;  // resume_notes says what that means
  }
  options.plan = kept;
  options.notes.push_back(
      fmt::format("sums over features have {} as in {}; --sum-shape gives others",
                  counted(before, "part"), resumed.folder().string()));
  return true;
}

std::vector<std::string> resume_notes(const RunOptions& options, const exec::Checkpoint& resumed) {
  std::vector<std::string> notes;
  if (!options.weights.empty())
    notes.push_back(fmt::format("{} is not read: the checkpoint has the weights", options.weights));
  const Plan& before = resumed.manifest().plan;
  const Plan& now = options.plan;
  if (sequences_of_step(now) != sequences_of_step(before)) {
    notes.push_back(fmt::format(
        "a step has {} sequences of {} tokens from here on; up to the checkpoint it had {} of {}",
        sequences_of_step(now), now.seq_len, sequences_of_step(before), before.seq_len));
  }
  if (now.micro_batch != before.micro_batch) {
    notes.push_back(fmt::format(
        "micro-batches have {} from here on, up to the checkpoint they had {}: results "
        "are equal but for rounding{}",
        counted(now.micro_batch, "sequence"), before.micro_batch,
        now.numerics.precision == Precision::kFp8 ? " to fp8, whose scales they share" : ""));
  }
  if (now.feature_parts() != before.feature_parts()) {
    notes.push_back(
        fmt::format("sums over features have {} from here on, up to the checkpoint they had {}: "
                    "results are equal but for rounding; --sum-shape gives others",
                    counted(now.feature_parts(), "part"), before.feature_parts()));
  }
  if (options.model.tied_head && now.use_parts() != before.use_parts()) {
    const bool apart = now.use_parts() > 1;
    notes.push_back(fmt::format(
        "gradients of the tied embedding and head are summed {} from here on, up to the checkpoint "
        "they were {}: results are equal but for rounding{}",
        apart ? "apart" : "together", apart ? "together" : "apart",
        apart ? "" : fmt::format("; --sum-shape {},1,1,2 gives others", now.feature_parts())));
  }
  for (const exec::JobFact& fact : resumed.manifest().job) {
    const std::string steps = fmt::format("{}", options.train.lr.total_steps);
    if (fact.key != "steps" || fact.value == steps) continue;
    notes.push_back(
        fmt::format("the schedule of the learning rate spans {} steps; before it spanned {}", steps,
                    fact.value));
  }
  for (std::string& sentence : moved_facts(options, resumed)) notes.push_back(std::move(sentence));
  return notes;
}

}  // namespace shardwright::cli
