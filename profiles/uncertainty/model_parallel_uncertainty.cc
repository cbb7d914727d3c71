// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/model_parallel_uncertainty.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

ModelParallelUncertainty load_model_parallel_uncertainty() {
  ModelParallelUncertainty uncertainty;
  const std::filesystem::path path = data_dir() / "fitted" / "model_parallel_residuals.json";
  if (!std::filesystem::exists(path)) return uncertainty;
  const JsonFile file = JsonFile::load(path);
  if (const auto memory = file.root().find_object("memory")) {
    uncertainty.memory_half_width = memory->require<double>("half_width", between(0.0, 10.0));
  }
  for (const JsonReader& gpu : file.root().require_array("gpus")) {
    uncertainty.gpus.push_back(gpu.value<std::string>());
  }
  uncertainty.most_gpus = file.root().require<std::int64_t>("most_gpus", at_least<std::int64_t>(1));
  for (const JsonReader& entry : file.root().require_array("stacks")) {
    ModelParallelRuns& runs = uncertainty.stacks.emplace_back();
    runs.stack = entry.require<std::string>("stack");
    runs.series = entry.require<std::int64_t>("series", at_least<std::int64_t>(1));
    for (const JsonReader& gpu : entry.require_array("gpus")) {
      runs.gpus.push_back(gpu.value<std::string>());
    }
  }
  return uncertainty;
}

}  // namespace

const ModelParallelRuns* ModelParallelUncertainty::runs_of(const std::string& stack) const {
  const auto at = std::find_if(stacks.begin(), stacks.end(),
                               [&](const ModelParallelRuns& runs) { return runs.stack == stack; });
  return at == stacks.end() ? nullptr : &*at;
}

std::vector<std::string> ModelParallelUncertainty::extrapolations(const std::string& stack,
                                                                  const std::string& gpu,
                                                                  std::int64_t gpus_of_plan) const {
  std::vector<std::string> sentences;
  if (stacks.empty()) return sentences;
  const ModelParallelRuns* runs = runs_of(stack);
  if (!has(gpus, gpu)) {
    sentences.push_back(fmt::format("gpu {}: no published model-parallel run", gpu));
  }
  if (runs == nullptr) {
    sentences.push_back(fmt::format("framework {}: no published model-parallel run", stack));
  } else if (has(gpus, gpu) && !has(runs->gpus, gpu)) {
    sentences.push_back(fmt::format("framework {} with gpu {}: no published run", stack, gpu));
  }
  if (gpus_of_plan > most_gpus) {
    sentences.push_back(
        fmt::format("gpus {} is above the largest measured, {}", gpus_of_plan, most_gpus));
  }
  return sentences;
}

const ModelParallelUncertainty& model_parallel_uncertainty() {
  static const ModelParallelUncertainty uncertainty = load_model_parallel_uncertainty();
  return uncertainty;
}

}  // namespace shardwright::profiles
