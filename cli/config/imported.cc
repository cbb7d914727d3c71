// SPDX-License-Identifier: Apache-2.0
#include "cli/config/imported.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"
#include "sim/core/features.h"
#include "sim/core/hf/config.h"
#include "sim/core/parallelism.h"

namespace shardwright::cli {
namespace {

/// Parts of keys about what moves neither the time of a step nor its memory.
constexpr std::string_view kFree =
    "learning_rate weight_decay warmup seed dataset data_path tokenizer logging log_ wandb "
    "tensorboard save eval_ max_steps epoch clip max_norm metrics profil output_dir beta _eps "
    "lr_ schedule description dump print comm. validat checkpoint. _path master_addr _port "
    "machine_rank rdzv main_process main_training compute_env same_network use_cpu state_dict "
    "debug train_iters train_samples node_rank dataloader logger. rng. env_vars swanlab trackio "
    "_steps early_stopping val_set loss_watchdog max_grad_norm";

/// Sections in which every key may decide the prediction.
constexpr std::string_view kDeciding =
    "training. parallelism. model. optimizer. train. ddp. zero_optimization. fsdp_config. "
    "model_spec. compile. mixed_precision. peft. comm_overlap.";

/// What of these sections is known to cost nothing, by the last part of its key.
constexpr std::string_view kNeutral =
    "lr min_lr betas eps weight_decay adam_beta1 adam_beta2 adam_eps adam_w_mode torch_adam "
    "momentum clip_grad max_norm max_grad_norm bias_correction steps train_iters train_samples "
    "exit_duration_in_mins exit_interval exit_signal_handler gc_freq manual_gc "
    "manual_gc_interval manual_gc_eval seed param_groups pattern optimizer_name lr_mult "
    "implementation use_cpu_initialization perform_initialization init_method_std init_method "
    "output_layer_init_method check_for_nan_in_grad check_for_large_grads average_in_collective "
    "pipeline_dtype params_dtype autocast_dtype grad_scale_func alpha dropout dropout_position "
    "lora_a_init_method lora_b_init_method lora_dtype hf_assets_path tokenizer_path hf_model_id "
    "apply_query_key_layer_scaling model_compile_enabled moe_router_dtype moe_aux_loss_coeff "
    "moe_router_load_balancing_type log_max_attention_logit";

bool costs_nothing(const std::string& key) {
  const std::string word = lower_case(key);
  if (word.find("activation") != word.npos) return false;
  if (word == "lr" || word.ends_with(".lr") || word == "steps" || word == "datasets") return true;
  static const Keys deciding = kDeciding, neutral = kNeutral, free = kFree;
  if (std::any_of(deciding.begin(), deciding.end(),
                  [&](std::string_view section) { return word.starts_with(section); })) {
    std::string last = word.substr(word.rfind('.') + 1);
    last = last.substr(0, last.find('['));
    return std::find(neutral.begin(), neutral.end(), last) != neutral.end();
  }
  if (word.find("batch") != word.npos || word.find("accumulation") != word.npos) return false;
  return std::any_of(free.begin(), free.end(),
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
    // Megatron-LM's own tests keep its arguments in YAML: "MODEL_ARGS: {--seq-length: 4096}".
    constexpr std::string_view kArguments = "MODEL_ARGS.--";
    if (setting.key.starts_with(kArguments)) {
      setting.key.erase(0, kArguments.size());
      std::replace(setting.key.begin(), setting.key.end(), '-', '_');
    }
    if (!setting.key.starts_with('_'))
      entries_.push_back({std::move(setting), false});  // a comment
  }
}

bool SettingBox::has(std::string_view key) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.setting.key == key || entry.setting.key.starts_with(std::string(key) + ".");
  });
}

bool SettingBox::is_auto(std::string_view key) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.setting.key == key && lower_case(entry.setting.value) == "auto";
  });
}

std::optional<std::string> SettingBox::peek(std::string_view key) const {
  std::optional<std::string> value;
  for (const Entry& entry : entries_) {
    if (entry.setting.key == key) value = entry.setting.value;
  }
  return value;
}

std::vector<std::string> SettingBox::take_list(std::string_view key) {
  std::vector<std::string> items;
  for (;;) {
    const auto item = take({fmt::format("{}[{}]", key, items.size())});
    if (!item) return items;
    items.push_back(*item);
  }
}

std::size_t SettingBox::take_section(std::string_view key) {
  std::size_t items = 0;
  for (Entry& entry : entries_) {
    const std::string_view name = entry.setting.key;
    if (!name.starts_with(key)) continue;
    const std::string_view rest = name.substr(key.size());
    if (!rest.empty() && !rest.starts_with('.') && !rest.starts_with('[')) continue;
    entry.used = true;
    if (rest.starts_with('[')) {
      const auto index = parse_int64(rest.substr(1, rest.find(']') - 1));
      if (index && *index >= 0) items = std::max(items, static_cast<std::size_t>(*index) + 1);
    }
  }
  return items;
}

std::optional<std::string> SettingBox::take(const Keys& keys) {
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

void SettingBox::pass(const Keys& keys, std::string_view section) {
  for (const std::string_view key : keys)
    static_cast<void>(take({fmt::format("{}{}", section, key)}));
}

std::optional<bool> SettingBox::take_switch(const Keys& keys) {
  const std::optional<std::string> text = take(keys);
  if (!text) return std::nullopt;
  const std::string word = lower_case(*text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") return true;
  if (word == "false" || word == "no" || word == "off" || word == "0") return false;
  fail("true or false");
}

std::optional<std::int64_t> SettingBox::take_count(const Keys& keys, std::int64_t least) {
  const std::optional<std::string> text = take(keys);
  if (!text) return std::nullopt;
  const std::optional<std::int64_t> count = parse_int64(*text);
  if (!count || *count < least || *count > (std::int64_t{1} << 40))
    fail(fmt::format("a whole number of at least {}", least));
  return count;
}

bool SettingBox::take_knob(const Keys& keys, std::string_view knob, ImportedConfig& to) {
  const std::optional<std::string> text = take(keys);
  if (!text) return false;
  set_knob(knob, *text, to);
  return true;
}

void SettingBox::set_knob(std::string_view knob, const std::string& text, ImportedConfig& to) {
  if (text.find('\n') != text.npos) fail("a value of one line");
  try {
    plan_knob(knob).read(to.knobs, fmt::format("{}: {}", file_, key_), text);
  } catch (const Error& error) {
    throw Error(error.what());  // of a file, not of the command line
  }
  std::string word(knob);
  std::replace(word.begin(), word.end(), '-', '_');
  took(fmt::format("{} {}", word, text), to);
}

void SettingBox::took(std::string meaning, ImportedConfig& to) const {
  to.taken.push_back({key_, value_, std::move(meaning)});
}

void SettingBox::leave(const Keys& keys, std::string_view why, ImportedConfig& to) {
  const std::optional<std::string> text = take(keys);
  if (text && !is_off(*text)) to.not_taken.push_back({key_, *text, std::string(why)});
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
    if (entry.setting.key == "begins_with") {
      to.assumed.push_back(fmt::format(
          "it begins with {}(), whose module is not beside it: what that sets is not read",
          entry.setting.value));
    } else if (costs_nothing(entry.setting.key)) {
      ++to.passed_over;
    } else if (entry.setting.key.starts_with('?')) {
      to.not_taken.push_back({entry.setting.key.substr(1), entry.setting.value,
                              "set under a condition that only running it would decide"});
    } else {
      to.not_taken.push_back({entry.setting.key, entry.setting.value, "not known here"});
    }
  }
}

void SettingBox::fail(std::string_view accepted) const {
  constexpr std::size_t kShown = 80;
  std::string shown = value_.size() > kShown ? value_.substr(0, kShown) + "..." : value_;
  std::replace(shown.begin(), shown.end(), '\n', ' ');
  throw Error(fmt::format("{}: {} is '{}', expected {}", file_, key_, shown, accepted));
}

const std::vector<ConfigFormat>& config_formats() {
  static const std::vector<ConfigFormat> formats = {
      {"torchtune", "torchtune", is_torchtune, read_torchtune},
      {"llama-factory", "LLaMA-Factory", is_llama_factory, read_llama_factory},
      {"unsloth", "Unsloth", is_unsloth, read_unsloth},
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
    std::int64_t& found = config.micro_batch_follows ? plan.micro_batch : plan.grad_accum;
    const std::int64_t given = config.micro_batch_follows ? plan.grad_accum : plan.micro_batch;
    if (*config.global_batch % (given * ranks) != 0) {
      throw Error(fmt::format(
          "{}: the global batch is {}, but {} ranks with {} {} each make {}, expected a multiple "
          "of {}",
          file, *config.global_batch, ranks, given,
          config.micro_batch_follows ? "micro-batches" : "sequences at a time", given * ranks,
          given * ranks));
    }
    found = *config.global_batch / (given * ranks);
  }
  return plan;
}

void fall_back(ImportedConfig& config, const Plan& plan, bool has_experts) {
  std::string lacks = beyond(plan, {});
  if (lacks.empty() && has_experts && config.stack != "megatron-core") {
    lacks = "the model has experts";
    config.knobs.parallel.dispatcher = Dispatcher::kAllToAll;
  }
  if (config.stack != "hf-eager" || lacks.empty()) return;
  config.stack = "hf-trainer";
  config.assumed.push_back(fmt::format(
      "{}, of which no run with Transformers was published: predicted with the framework "
      "hf-trainer, whose steps are hf-eager's with that added",
      lacks));
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
  return found.size() == 1 ? found[0] : "";
}

}  // namespace shardwright::cli
