// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/software.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace shardwright::cli {
namespace {

/// GPUs on which runs of this stack were published.
std::vector<std::string> gpus_of(const profiles::Uncertainty& uncertainty,
                                 const std::string& stack) {
  std::vector<std::string> gpus;
  const auto seen = uncertainty.seen.find("stack on gpu");
  if (seen == uncertainty.seen.end()) return gpus;
  const std::string start = stack + " on ";
  for (const std::string& entry : seen->second) {
    if (entry.starts_with(start)) gpus.push_back(entry.substr(start.size()));
  }
  return gpus;
}

bool has_estimated_rates(const profiles::GpuCost& cost) {
  return cost.gemm.provenance.confidence == "estimate";
}

}  // namespace

std::string software_sentence(const profiles::Profile& profile) {
  const std::string& stack = profile.stack.id;
  const std::string& gpu = profile.cluster.gpu.id;
  if (profile.cluster.gpu.is_processor())
    return fmt::format("The steps are those of {} on a processor.", stack);
  std::int64_t runs = 0;
  for (const profiles::ErrorGroup& group : profile.uncertainty.groups) {
    if (group.stack == stack) runs += group.n;
  }
  const std::vector<std::string> gpus = gpus_of(profile.uncertainty, stack);
  std::string text = fmt::format("The steps are those of the software {}", stack);
  if (stack == "native") {
    text += ", this project's executor, which has never run on a GPU";
    if (runs > 0) {
      text += fmt::format(
          "; {} published runs of a trainer like it, on {}, are all that it was "
          "checked against",
          runs, fmt::join(gpus, ", "));
    }
  } else if (runs > 0) {
    text +=
        fmt::format(", checked against {} published runs of it on {}", runs, fmt::join(gpus, ", "));
  } else {
    text += ", of which no published run was predicted";
  }
  if (stack != "native" && runs > 0 && std::find(gpus.begin(), gpus.end(), gpu) == gpus.end())
    text += fmt::format("; on {} it was never measured", gpu);
  if (has_estimated_rates(profile.cost))
    text += fmt::format("; the rates of {} are estimates, nothing was measured on it", gpu);
  return text + ".";
}

}  // namespace shardwright::cli
