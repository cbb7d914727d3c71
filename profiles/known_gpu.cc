// SPDX-License-Identifier: Apache-2.0
#include "profiles/known_gpu.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "profiles/data_dir.h"
#include "profiles/gpu_file.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

namespace fs = std::filesystem;

/// The driver and the data file may count what is reserved differently.
constexpr double kMemoryTolerance = 0.06;

/// "h100" of "h100-80g".
std::string model_word(const std::string& id) {
  return id.substr(0, id.find('-'));
}

/// Whether a name in lower case has the word of the model, and of the form where it matters.
bool same_kind(const std::string& name, const std::string& id) {
  const auto in = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  return in(name, model_word(id).c_str()) && in(name, "pcie") == in(id, "pcie") &&
         in(name, "nvl") == in(id, "nvl");
}

/// In lower case: "nvidia", "a100", "sxm4", "80gb".
std::vector<std::string> words_in(std::string_view name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : lower_case(name)) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (letter && !inside) words.emplace_back();
    if (letter) words.back() += c;
    inside = letter;
  }
  return words;
}

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// "80g" and "500w" of an id say how much.
bool is_amount(const std::string& word) {
  return word.size() > 1 && (word.back() == 'g' || word.back() == 'w') &&
         word.find_first_not_of("0123456789") == word.size() - 1;
}

std::vector<fs::path> gpu_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(data_dir() / "gpus")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool is_named_as(std::string_view name, const std::string& id) {
  const std::vector<std::string> words = words_in(name);
  std::string joined;
  for (const std::string& word : words) joined += word;
  for (const char* form : {"pcie", "nvl"}) {
    if (holds(words, form) != holds(words_in(id), form)) return false;
  }
  const bool says_memory = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.size() > 2 && word.ends_with("gb") && is_amount(word.substr(0, word.size() - 1));
  });
  for (const std::string& part : words_in(id)) {
    if (is_amount(part)) {
      if (part.back() == 'g' && says_memory && !holds(words, part + "b")) return false;
    } else if (part.find_first_of("0123456789") != part.npos && part.size() > 4) {
      // "5060ti" is "5060 Ti" to the driver.
      if (joined.find(part) == joined.npos) return false;
    } else if (!holds(words, part)) {
      return false;
    }
  }
  return true;
}

std::string kind_named(std::string_view name) {
  std::string found;
  for (const fs::path& file : gpu_files()) {
    const std::string id = file.stem().string();
    if (!is_named_as(name, id)) continue;
    if (!found.empty()) return "";
    found = id;
  }
  return found;
}

std::optional<Gpu> known_gpu(const SeenGpu& seen) {
  std::optional<Gpu> found;
  const std::string name = lower_case(seen.name);
  for (const fs::path& file : gpu_files()) {
    if (!same_kind(name, file.stem().string())) continue;
    const Gpu candidate = load_gpu(file.string()).gpu;
    const double memory = static_cast<double>(candidate.memory_bytes);
    if (candidate.sm_count != seen.multiprocessors ||
        std::abs(static_cast<double>(seen.memory_bytes) - memory) > kMemoryTolerance * memory) {
      continue;
    }
    if (found && found->peak_bf16_flops != candidate.peak_bf16_flops) return std::nullopt;
    found = candidate;
  }
  return found;
}

}  // namespace shardwright::profiles
