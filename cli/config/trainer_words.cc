// SPDX-License-Identifier: Apache-2.0
#include "cli/config/trainer_words.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace shardwright::cli {

std::string lower_case_word(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

void take_optimizer_word(SettingBox& box, std::string_view key, ImportedConfig& to) {
  const auto name = box.take({key});
  if (!name) return;
  std::string word = lower_case_word(*name);
  word.erase(0, word.rfind('.') == word.npos ? 0 : word.rfind('.') + 1);
  const auto has = [&](std::string_view part) { return word.find(part) != word.npos; };
  if (has("8bit") && has("adam")) {
    box.set_knob("optimizer", "adamw-8bit", to);
  } else if (has("4bit") && has("adam")) {
    box.set_knob("optimizer", "adamw-8bit", to);
    to.not_taken.push_back({box.key(), *name, "moments of 4 bits are predicted as 8"});
  } else if (word == "muon" || word == "sgd") {
    box.set_knob("optimizer", word, to);
  } else if (word.starts_with("adamw") || word == "paged_adamw_32bit" || word == "paged_adamw" ||
             word == "pagedadamw") {
    box.set_knob("optimizer", "adamw", to);
  } else {
    to.not_taken.push_back({box.key(), *name, "predicted as AdamW"});
  }
}

void take_fused_loss(SettingBox& box, ImportedConfig& to) {
  box.set_knob("loss-chunks", fmt::format("{}", kFusedLossPieces), to);
}

bool take_deepspeed_file(SettingBox& box, ImportedConfig& to) {
  const auto file = box.take({"deepspeed"});
  if (!file) return false;
  std::string word = lower_case_word(*file);
  word.erase(0, word.rfind('/') == word.npos ? 0 : word.rfind('/') + 1);
  bool found = false;
  for (const auto& [digit, strategy] :
       {std::pair{'0', Strategy::kDdp}, std::pair{'1', Strategy::kZero1},
        std::pair{'2', Strategy::kZero2}, std::pair{'3', Strategy::kZero3}}) {
    for (const std::string_view stage : {"zero", "_z"}) {
      if (word.find(std::string(stage) + digit) == word.npos) continue;
      to.strategy = strategy;
      found = true;
    }
  }
  if (!found) box.fail("a file named after its ZeRO stage; import that file itself");
  box.took(fmt::format("strategy {}, by the file's name", name_of(to.strategy)), to);
  if (word.find("offload") != word.npos) {
    box.set_knob("offload", "optimizer", to);
    // axolotl has one file that moves the parameters too; LLaMA-Factory's of stage 3 do.
    const bool parameters = word.find("cpuoffload_") != word.npos || word.find("_z3") != word.npos;
    if (parameters) to.not_taken.push_back({box.key(), *file, "parameters stay on the GPU here"});
  }
  return true;
}

}  // namespace shardwright::cli
