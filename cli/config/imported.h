// SPDX-License-Identifier: Apache-2.0
// What the settings of another trainer say about a plan.
//
// A reader of a format takes settings out of a SettingBox one by one: what it takes becomes a knob
// of the plan, what it knows but cannot express is left with its reason, and what nobody took is
// listed at the end, so that nothing vanishes. plan_of() puts the knobs together once the number of
// GPUs is known. One file per trainer in cli/trainers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/setting.h"
#include "sim/core/plan.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::cli {

struct TakenSetting {
  std::string key, value;
  std::string meaning;  // in knobs of a plan: "micro_batch 8"
};

struct LeftSetting {
  std::string key, value;
  std::string why;
};

struct ImportedConfig {
  std::string model, stack;  // empty: not said
  std::optional<std::int64_t> gpus, global_batch;
  bool micro_batch_follows = false;  // from the global batch, the ranks and the accumulation
  Strategy strategy = Strategy::kFsdp2;
  std::int64_t replicate = 1;          // copies of the parameters, where the file says so
  std::optional<std::int64_t> shard;   // ranks that share one; none: all that are left
  std::int64_t ckpt_stride = 1;        // every n-th layer is checkpointed
  GivenKnobs knobs;                    // all others
  std::vector<std::string> overrides;  // of the profile: KEY=VALUE
  std::vector<TakenSetting> taken;
  std::vector<LeftSetting> not_taken;
  std::vector<std::string> assumed;  // sentences: what the file leaves to a default or a script
  std::int64_t passed_over = 0;      // settings that cost neither time nor memory
};

/// One key or several, in a text with blanks between them.
class Keys : public std::vector<std::string_view> {
 public:
  Keys(std::initializer_list<std::string_view> keys) : vector(keys) {}
  Keys(std::string_view words) {  // NOLINT(google-explicit-constructor)
    while (!words.empty()) {
      push_back(words.substr(0, words.find(' ')));
      words.remove_prefix(std::min(words.size(), back().size() + 1));
    }
  }
  Keys(const char* words)  // NOLINT(google-explicit-constructor)
      : Keys(std::string_view(words)) {}
  Keys(const std::string& words)  // NOLINT(google-explicit-constructor)
      : Keys(std::string_view(words)) {}
};

/// The settings of a file, each taken at most once.
class SettingBox {
 public:
  SettingBox(Settings settings, std::string file);

  const std::string& file() const { return file_; }
  bool has(std::string_view key) const;
  /// Whether the key is there and left to the trainer: "auto".
  bool is_auto(std::string_view key) const;
  /// The value of a key, which stays to be taken.
  std::optional<std::string> peek(std::string_view key) const;
  /// The value of the first of the keys that is there; it counts as taken. None also for null, ""
  /// and "auto".
  std::optional<std::string> take(const Keys& keys);
  std::optional<bool> take_switch(const Keys& keys);
  std::optional<std::int64_t> take_count(const Keys& keys, std::int64_t least = 1);
  /// The items of a list in their order.
  std::vector<std::string> take_list(std::string_view key);
  /// Whether a switch is there and on.
  bool is_on(const Keys& keys) { return take_switch(keys).value_or(false); }
  /// Takes what costs nothing, whatever it says; each key behind `section`.
  void pass(const Keys& keys, std::string_view section = {});
  /// Takes the key and all below it, whatever they say. The number of a list's items.
  std::size_t take_section(std::string_view key);
  /// The key that was taken last, for who writes about it.
  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }

  /// Knobs: the value read as the flag would be. `knob` is a name of plan_knobs.h.
  bool take_knob(const Keys& keys, std::string_view knob, ImportedConfig& to);
  void set_knob(std::string_view knob, const std::string& text, ImportedConfig& to);
  /// Notes the last one as taken.
  void took(std::string meaning, ImportedConfig& to) const;
  /// Takes and lists it as left, unless it is not there, false or "none".
  void leave(const Keys& keys, std::string_view why, ImportedConfig& to);

  /// What nobody took: passed over where the key is about something that costs nothing here, else
  /// listed. A key of a section that decides the prediction is never passed over unless it is known
  /// to cost nothing.
  void finish(ImportedConfig& to);
  [[noreturn]] void fail(std::string_view accepted) const;

 private:
  struct Entry {
    Setting setting;
    bool used = false;
  };
  std::vector<Entry> entries_;
  std::string file_, key_, value_;
};

struct ConfigFormat {
  std::string_view name;   // as --format takes it
  std::string_view title;  // as people write it
  bool (*recognizes)(const SettingBox& box);
  void (*read)(SettingBox& box, ImportedConfig& to);
  /// Which numbers of checkpointed layers its settings can say.
  enum class Layers : std::uint8_t { kAll, kAny } layers = Layers::kAll;
};

const std::vector<ConfigFormat>& config_formats();
/// Throws Error naming --format and the word.
const ConfigFormat& config_format_named(const std::string& name);
/// Throws Error listing the formats where none recognizes the settings.
const ConfigFormat& recognized_format(const SettingBox& box);

/// Takes another framework where the one that the file means does not do what it says, and says so.
void fall_back(ImportedConfig& config, const Plan& plan, bool has_experts);

/// The plan for so many GPUs. Throws Error when the degrees that the file says do not divide them.
Plan plan_of(const ImportedConfig& config, std::int64_t gpus, std::int64_t layers,
             const std::string& file);

/// "4 copies of the parameters".
std::string copies_words(std::int64_t copies);

/// The shipped model with these sizes, or "" where none or several have them.
std::string model_with(std::int64_t layers, std::int64_t hidden,
                       std::optional<std::int64_t> intermediate);

bool is_torchtitan(const SettingBox& box);
void read_torchtitan(SettingBox& box, ImportedConfig& to);
bool is_accelerate(const SettingBox& box);
void read_accelerate(SettingBox& box, ImportedConfig& to);
bool is_deepspeed(const SettingBox& box);
void read_deepspeed(SettingBox& box, ImportedConfig& to);
bool is_axolotl(const SettingBox& box);
void read_axolotl(SettingBox& box, ImportedConfig& to);
bool is_llama_factory(const SettingBox& box);
void read_llama_factory(SettingBox& box, ImportedConfig& to);
bool is_unsloth(const SettingBox& box);
void read_unsloth(SettingBox& box, ImportedConfig& to);
bool is_torchtune(const SettingBox& box);
void read_torchtune(SettingBox& box, ImportedConfig& to);
bool is_megatron(const SettingBox& box);
void read_megatron(SettingBox& box, ImportedConfig& to);

}  // namespace shardwright::cli
