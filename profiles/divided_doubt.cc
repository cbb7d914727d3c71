// SPDX-License-Identifier: Apache-2.0
#include "profiles/divided_doubt.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

constexpr double kUnknownGpu = 1.25;  // as kBeyond of sim/doubt/conformal.h

DividedDoubt load_divided_doubt() {
  DividedDoubt doubt;
  const std::filesystem::path path = data_dir() / "fitted" / "divided_residuals.json";
  if (!std::filesystem::exists(path)) return doubt;
  const JsonFile file = JsonFile::load(path);
  doubt.level = file.root().require<double>("level", between(0.01, 0.999));
  for (const JsonReader& entry : file.root().require_array("widths")) {
    DividedWidth& width = doubt.widths.emplace_back();
    width.mixture = entry.require<bool>("mixture");
    width.narrow = entry.require<bool>("narrow");
    width.half_width = entry.require<double>("half_width", between(0.0, 10.0));
    width.cells = entry.require<std::int64_t>("cells", at_least<std::int64_t>(1));
  }
  if (const auto memory = file.root().find_object("memory")) {
    doubt.memory_half_width = memory->require<double>("half_width", between(0.0, 10.0));
  }
  for (const JsonReader& gpu : file.root().require_array("gpus")) {
    doubt.gpus.push_back(gpu.value<std::string>());
  }
  doubt.most_gpus = file.root().require<std::int64_t>("most_gpus", at_least<std::int64_t>(1));
  for (const JsonReader& entry : file.root().require_array("stacks")) {
    DividedRuns& runs = doubt.stacks.emplace_back();
    runs.stack = entry.require<std::string>("stack");
    runs.series = entry.require<std::int64_t>("series", at_least<std::int64_t>(1));
    for (const JsonReader& gpu : entry.require_array("gpus")) {
      runs.gpus.push_back(gpu.value<std::string>());
    }
  }
  return doubt;
}

}  // namespace

double DividedDoubt::half_width(bool mixture, bool narrow, const std::string& gpu) const {
  const auto at = std::find_if(widths.begin(), widths.end(), [&](const DividedWidth& width) {
    return width.mixture == mixture && width.narrow == narrow;
  });
  if (at == widths.end()) return 0;
  return at->half_width * (has(gpus, gpu) ? 1 : kUnknownGpu);
}

const DividedRuns* DividedDoubt::runs_of(const std::string& stack) const {
  const auto at = std::find_if(stacks.begin(), stacks.end(),
                               [&](const DividedRuns& runs) { return runs.stack == stack; });
  return at == stacks.end() ? nullptr : &*at;
}

std::vector<std::string> DividedDoubt::extrapolations(const std::string& stack,
                                                      const std::string& gpu,
                                                      std::int64_t gpus_of_plan) const {
  std::vector<std::string> sentences;
  if (widths.empty()) return sentences;
  const DividedRuns* runs = runs_of(stack);
  if (!has(gpus, gpu)) {
    sentences.push_back(fmt::format("gpu {}: no published run that divides a model", gpu));
  }
  if (runs == nullptr) {
    sentences.push_back(fmt::format("stack {}: no published run that divides a model", stack));
  } else if (has(gpus, gpu) && !has(runs->gpus, gpu)) {
    sentences.push_back(fmt::format("stack {} with gpu {}: no published run", stack, gpu));
  }
  if (gpus_of_plan > most_gpus) {
    sentences.push_back(
        fmt::format("gpus {} is above the largest measured, {}", gpus_of_plan, most_gpus));
  }
  return sentences;
}

const DividedDoubt& divided_doubt() {
  static const DividedDoubt doubt = load_divided_doubt();
  return doubt;
}

}  // namespace shardwright::profiles
