// SPDX-License-Identifier: Apache-2.0
#include "profiles/known_gpu.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "profiles/data_dir.h"
#include "profiles/gpu_file.h"
#include "sim/core/words.h"

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

}  // namespace

std::optional<Gpu> known_gpu(const SeenGpu& seen) {
  std::optional<Gpu> found;
  const std::string name = lower_case(seen.name);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(data_dir() / "gpus")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
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
