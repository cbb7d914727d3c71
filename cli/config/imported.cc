// SPDX-License-Identifier: Apache-2.0
#include "cli/config/imported.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "profiles/data_dir.h"
#include "sim/core/error.h"
#include "sim/core/hf_config.h"
#include "sim/core/parse_number.h"
#include "sim/core/parse_value.h"
#include "sim/core/words.h"

namespace shardwright::cli {
namespace {

/// Parts of keys about what moves neither the time of a step nor its memory.
constexpr std::array<std::string_view, 46> kFree = {
    "learning_rate", "weight_decay", "warmup",        "seed",         "dataset",     "data_path",
    "tokenizer",     "logging",      "log_",          "wandb",        "tensorboard", "save",
    "eval_",         "_steps",       ".steps",        "max_steps",    "epoch",       "clip",
    "max_norm",      "metrics",      "profil",        "output_dir",   "beta",        "_eps",
    "lr_",           "schedule",     "description",   "dump",         "print",       "comm.",
    "validat",       "checkpoint.",  "_path",         "master_addr",  "_port",       "machine_rank",
    "rdzv",          "main_",        "compute_env",   "same_network", "use_cpu",     "state_dict",
    "debug",         "train_iters",  "train_samples", "node_rank"};

bool costs_nothing(const std::string& key) {
  const std::string word = lower_case(key);
  if (word.find("activation") != word.npos) return false;
  if (word == "lr" || word.ends_with(".lr") || word == "steps" || word == "datasets") return true;
  return std::any_of(kFree.begin(), kFree.end(),
                     [&](std::string_view part) { return word.find(part) != word.npos; });
}

bool says_nothing(const std::string& value) {
  const std::string word = lower_case(value);
  return word.empty() || word == "null" || word == "none" || word == "auto" || word == "~";
}

bool is_off(const std::string& value) {
  const std::string word = lower_case(value);
  return says_nothing(value) || word == "false" || word == "no" || word == "0" || word == "off";
}

}  // namespace

SettingBox::SettingBox(Settings settings, std::string file) : file_(std::move(file)) {
  for (Setting& setting : settings) {
    if (!setting.key.starts_with('_'))
      entries_.push_back({std::move(setting), false});  // a comment
  }
}

bool SettingBox::has(std::string_view key) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.setting.key == key || entry.setting.key.starts_with(std::string(key) + ".");
  });
}

std::optional<std::string> SettingBox::take(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    // The last one counts, as in every one of these languages.
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->setting.key != key) continue;
      for (Entry& same : entries_) same.used |= same.setting.key == key;
      key_ = entry->setting.key;
      value_ = entry->setting.value;
      if (says_nothing(value_)) break;
      return value_;
    }
  }
  return std::nullopt;
}

std::optional<bool> SettingBox::take_switch(std::initializer_list<std::string_view> keys) {
  const std::optional<std::string> text = take(keys);
  if (!text) return std::nullopt;
  const std::string word = lower_case(*text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") return true;
  if (word == "false" || word == "no" || word == "off" || word == "0") return false;
  fail("true or false");
}

std::optional<std::int64_t> SettingBox::take_count(std::initializer_list<std::string_view> keys,
                                                   std::int64_t least) {
  const std::optional<std::string> text = take(keys);
  if (!text) return std::nullopt;
  const std::optional<std::int64_t> count = parse_int64(*text);
  if (!count || *count < least || *count > (std::int64_t{1} << 40))
    fail(fmt::format("a whole number of at least {}", least));
  return count;
}

bool SettingBox::take_knob(std::initializer_list<std::string_view> keys, std::string_view knob,
                           ImportedConfig& to) {
  const std::optional<std::string> text = take(keys);
  if (!text) return false;
  set_knob(knob, *text, to);
  return true;
}

void SettingBox::set_knob(std::string_view knob, const std::string& text, ImportedConfig& to) {
  plan_knob(knob).read(to.knobs, fmt::format("{}: {}", file_, key_), text);
  std::string word(knob);
  std::replace(word.begin(), word.end(), '-', '_');
  took(fmt::format("{} {}", word, text), to);
}

void SettingBox::took(std::string meaning, ImportedConfig& to) const {
  to.taken.push_back({key_, value_, std::move(meaning)});
}

void SettingBox::leave(std::initializer_list<std::string_view> keys, const std::string& why,
                       ImportedConfig& to) {
  const std::optional<std::string> text = take(keys);
  if (text && !is_off(*text)) to.not_taken.push_back({key_, *text, why});
}

void SettingBox::finish(ImportedConfig& to) {
  const auto has_below = [this](const std::string& key) {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
      return other.setting.key.starts_with(key + ".");
    });
  };
  for (Entry& entry : entries_) {
    if (entry.used || is_off(entry.setting.value)) continue;
    // A call whose arguments are settings of their own.
    if (entry.setting.value.ends_with(")") && has_below(entry.setting.key)) continue;
    if (costs_nothing(entry.setting.key)) {
      ++to.passed_over;
    } else {
      to.not_taken.push_back({entry.setting.key, entry.setting.value, "not known here"});
    }
  }
}

void SettingBox::fail(std::string_view accepted) const {
  throw Error(fmt::format("{}: {} is '{}', expected {}", file_, key_, value_, accepted));
}

const std::vector<ConfigFormat>& config_formats() {
  static const std::vector<ConfigFormat> formats = {
      {"torchtitan", "torchtitan", is_torchtitan, read_torchtitan},
      {"axolotl", "axolotl", is_axolotl, read_axolotl},
      {"accelerate", "Accelerate", is_accelerate, read_accelerate},
      {"deepspeed", "DeepSpeed", is_deepspeed, read_deepspeed},
      {"megatron", "Megatron", is_megatron, read_megatron, ConfigFormat::Layers::kAny}};
  return formats;
}

const ConfigFormat& config_format_named(const std::string& name) {
  std::vector<std::string> names;
  for (const ConfigFormat& format : config_formats()) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  fail_word("--format", name, names);
}

const ConfigFormat& recognized_format(const SettingBox& box) {
  std::vector<std::string_view> titles;
  for (const ConfigFormat& format : config_formats()) {
    if (format.recognizes(box)) return format;
    titles.push_back(format.title);
  }
  throw Error(
      fmt::format("{}: holds no setting of a trainer that is known here, expected the "
                  "settings of one of {}",
                  box.file(), fmt::join(titles, ", ")));
}

Plan plan_of(const ImportedConfig& config, std::int64_t gpus, std::int64_t layers,
             const std::string& file) {
  Plan plan;
  plan.gpus = gpus;
  plan.recompute = Recompute::kNone;
  plan = with_knobs(plan, config.knobs, layers);
  plan.ckpt_stride = config.ckpt_stride;
  if (config.ckpt_stride > 1) plan.ckpt_layers = layers / config.ckpt_stride;
  plan.strategy = config.strategy;
  if (!config.stack.empty()) plan.stack = config.stack;
  if (gpus % plan.parallel.replica() != 0) {
    throw Error(
        fmt::format("{}: {} GPUs hold one copy of the model, which does not divide {} GPUs; "
                    "expected --gpus to be a multiple of {}",
                    file, plan.parallel.replica(), gpus, plan.parallel.replica()));
  }
  const std::int64_t ranks = gpus / plan.parallel.replica();
  if (config.replicate > 1 || config.shard) {
    const std::int64_t shard = config.shard.value_or(ranks / config.replicate);
    // Ranks of a context-parallel group shard with those of data parallelism.
    if (shard * config.replicate != ranks && shard * config.replicate != ranks * plan.parallel.cp) {
      throw Error(
          fmt::format("{}: {} copies of the parameters, each over {} ranks, make {}, but {} "
                      "GPUs have {}; expected --gpus {}",
                      file, config.replicate, shard, shard * config.replicate, gpus, ranks,
                      shard * config.replicate * plan.parallel.replica()));
    }
    if (info_of(plan.strategy).hybrid) plan.shard_group = shard;
  }
  if (info_of(plan.strategy).one_rank && gpus > 1) plan.strategy = Strategy::kDdp;
  if (gpus == 1 && plan.parallel.plain()) plan.strategy = Strategy::kSingle;
  if (config.global_batch) {
    const std::int64_t at_once = plan.micro_batch * ranks;
    if (*config.global_batch % at_once != 0) {
      throw Error(
          fmt::format("{}: the global batch is {}, but {} ranks take {} sequences at a time, "
                      "expected a multiple of {}",
                      file, *config.global_batch, ranks, at_once, at_once));
    }
    plan.grad_accum = *config.global_batch / at_once;
  }
  return plan;
}

std::string copies_words(std::int64_t copies) {
  return copies == 1 ? "one copy of the parameters"
                     : fmt::format("{} copies of the parameters", copies);
}

std::string model_with(std::int64_t layers, std::int64_t hidden,
                       std::optional<std::int64_t> intermediate) {
  const auto folder = profiles::data_dir() / "models";
  std::vector<std::string> found;
  for (const std::string& name : builtin_models(folder)) {
    const Model model = load_model(folder, name);
    if (model.layers != layers || model.hidden != hidden) continue;
    if (intermediate && model.ffn != *intermediate) continue;
    found.push_back(name);
  }
  return found.size() == 1 ? found.front() : "";
}

}  // namespace shardwright::cli
