// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/novelty.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiles/uncertainty/uncertainty.h"

namespace shardwright::cli {
namespace {

using profiles::WidthAxis;

constexpr double kLeastShown = 5e-4;  // of a half-width: a twentieth of a percent

std::string class_of(WidthAxis axis, const profiles::Profile& profile,
                     const sim::Prediction& prediction) {
  const Plan& plan = prediction.plan;
  const std::string& gpu = profile.cluster.gpu.id;
  switch (axis) {
    case WidthAxis::kSource:
      return prediction.time.novelty <= profiles::Novelty::kStackOnGpu
                 ? "runs like it are published"
                 : "nobody published such a run";
    case WidthAxis::kModelClass:
      return "an MoE model";
    case WidthAxis::kPrecision:
      return fmt::format("{} on {}", name_of(plan.numerics.precision), gpu);
    case WidthAxis::kGpu:
      return profile.cost.gemm.provenance.confidence == "estimate" &&
                     !profiles::novelty_widths().ran_on(profile.cluster.gpu.architecture)
                 ? fmt::format("rates of {} are estimates", gpu)
                 : fmt::format("few or no published steps on {}", gpu);
    case WidthAxis::kFramework:
      return fmt::format("few or no published steps of {} with such plans", profile.stack.family);
    case WidthAxis::kSize:
      return "larger than any published run";
    case WidthAxis::kHost:
      return "layers quicker than any published ones: the host may not keep up";
    case WidthAxis::kRouting:
      return "loads of experts that nobody measured";
    case WidthAxis::kScale:
      return fmt::format("{} GPUs on several nodes", plan.gpus);
    case WidthAxis::kOrder:
      return "kernels of equal priority in either order";
    case WidthAxis::kRetries:
      return "the allocator empties its cache within a step";
  }
  return {};
}

std::string measure_of(WidthAxis axis) {
  switch (axis) {
    case WidthAxis::kSource:
    case WidthAxis::kModelClass:
    case WidthAxis::kFramework:
      return "a step of this model and framework on one node (anchor)";
    case WidthAxis::kPrecision:
    case WidthAxis::kGpu:
      return "a traced step on one node (calibrate)";
    case WidthAxis::kSize:
    case WidthAxis::kScale:
      return "steps on two numbers of nodes";
    case WidthAxis::kHost:
      return "a traced step (calibrate): what its launches take on this host";
    case WidthAxis::kRouting:
      return "how many tokens each expert takes, layer by layer";
    case WidthAxis::kOrder:
    case WidthAxis::kRetries:
      return "a step of this plan";
  }
  return {};
}

}  // namespace

std::vector<NoveltyWords> novelty_words(const profiles::Profile& profile,
                                        const sim::Prediction& prediction) {
  std::vector<NoveltyWords> words;
  const profiles::AddedWidths& added = prediction.time.added_half_widths;
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (added[i] < kLeastShown) continue;
    const auto axis = static_cast<WidthAxis>(i);
    words.push_back(
        {name_of(axis), class_of(axis, profile, prediction), added[i], measure_of(axis)});
  }
  std::stable_sort(words.begin(), words.end(),
                   [](const NoveltyWords& a, const NoveltyWords& b) { return a.adds > b.adds; });
  return words;
}

}  // namespace shardwright::cli
