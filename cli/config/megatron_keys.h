// SPDX-License-Identifier: Apache-2.0
// The names that Megatron-LM's arguments and Megatron-Bridge's configuration have in common.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/config/imported.h"

namespace shardwright::cli {

/// "tensor_model_parallel_size" where Megatron-LM has it, and in the sections of Megatron-Bridge.
class MegatronKeys {
 public:
  explicit MegatronKeys(std::string_view name) {
    for (std::size_t i = 0; i < kSections.size(); ++i)
      all_[i] = std::string(kSections[i]) + std::string(name);
  }
  std::optional<std::string> take(SettingBox& box) const {
    for (const std::string& key : all_) {
      if (auto value = box.take({key})) return value;
    }
    return std::nullopt;
  }
  std::optional<std::int64_t> count(SettingBox& box, std::int64_t least = 1) const {
    for (const std::string& key : all_) {
      if (const auto value = box.take_count({key}, least)) return value;
    }
    return std::nullopt;
  }
  bool on(SettingBox& box) const {
    for (const std::string& key : all_) {
      if (const auto value = box.take_switch({key})) return *value;
    }
    return false;
  }
  bool knob(SettingBox& box, std::string_view knob, ImportedConfig& to) const {
    for (const std::string& key : all_) {
      if (box.take_knob({key}, knob, to)) return true;
    }
    return false;
  }

 private:
  static constexpr std::array<std::string_view, 9> kSections = {
      "",           "model.",        "train.",           "ddp.",           "dataset.",
      "optimizer.", "comm_overlap.", "mixed_precision.", "model_parallel."};
  std::array<std::string, 9> all_;
};

/// Types, precision, the optimizer and its states.
void take_megatron_numbers(SettingBox& box, ImportedConfig& to);

}  // namespace shardwright::cli
