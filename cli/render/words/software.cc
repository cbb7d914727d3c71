// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/software.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"

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

/// What one source published of a model on a GPU, with this stack, is one series.
std::int64_t series_of(const profiles::Uncertainty& uncertainty, const std::string& stack) {
  const auto cells = uncertainty.seen.find("cell");
  if (cells == uncertainty.seen.end()) return 0;
  return std::count_if(cells->second.begin(), cells->second.end(),
                       [&](const std::string& cell) { return cell.ends_with(" | " + stack); });
}

bool has_estimated_rates(const profiles::GpuCost& cost) {
  return cost.gemm.provenance.confidence == "estimate";
}

}  // namespace

std::string software_sentence(const profiles::Profile& profile) {
  // An preset is checked by its family's runs, what is only built on another stack is not.
  const bool preset = profile.stack.id.starts_with(profile.stack.family);
  const std::string& stack = preset ? profile.stack.family : profile.stack.id;
  const std::string& gpu = profile.cluster.gpu.id;
  if (profile.cluster.gpu.is_processor())
    return fmt::format("The steps are those of {} on a processor.", stack);
  std::int64_t series = series_of(profile.uncertainty, stack);
  std::vector<std::string> gpus = gpus_of(profile.uncertainty, stack);
  const profiles::ModelParallelRuns* model_parallel =
      profiles::model_parallel_uncertainty().runs_of(stack);
  if (series == 0 && model_parallel != nullptr) {
    series = model_parallel->series;
    gpus = model_parallel->gpus;
  }
  std::string text = fmt::format("The steps are those of the framework {}", stack);
  if (stack == "native") {
    text += ", this project's executor, which has never run on a GPU";
    if (series > 0) {
      text += fmt::format(
          "; {} series of published runs of a trainer like it, on {}, are all that it was "
          "checked against",
          series, fmt::join(gpus, ", "));
    }
  } else if (series > 0) {
    text += fmt::format(", checked against {} series of published runs of it on {}", series,
                        fmt::join(gpus, ", "));
  } else if (!preset && divides_models(profile.stack.parallel.features())) {
    text +=
        ", whose published runs `validate --ledger profiles/data/published/parallel.csv` scores";
  } else {
    text += ", of which no published run was predicted";
  }
  const bool has_runs = std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
  if (stack != "native" && series > 0 && !has_runs)
    text += fmt::format("; on {} it was never measured", gpu);
  if (has_estimated_rates(profile.cost)) {
    text += has_runs
                ? fmt::format("; the rates of single operations on {} are estimates", gpu)
                : fmt::format("; the rates of {} are estimates, nothing was measured on it", gpu);
  }
  return text + ".";
}

std::string strategy_software(const Plan& plan, const Stack& stack) {
  if (stack.optimizer.bucketed) return stack.id;
  const auto whose = [](Software software) -> std::string_view {
    switch (software) {
      case Software::kDdp:
        return "DDP";
      case Software::kDeepSpeed:
        return "DeepSpeed";
      case Software::kFsdp1:
        return "FSDP1";
      case Software::kFsdp2:
        return "FSDP2";
      case Software::kYafsdp:
        return "YaFSDP";
      case Software::kMegatron:
        return "Megatron";
      case Software::kNone:
        break;
    }
    return "one GPU";
  };
  return fmt::format("{} on {}", whose(info_of(plan.strategy).software), stack.id);
}

std::string foreign_strategy_sentence(const std::vector<sim::Prediction>& predictions,
                                      const Stack& stack) {
  if (stack.optimizer.bucketed) return "";
  for (const sim::Prediction& prediction : predictions) {
    const StrategyInfo& strategy = info_of(prediction.plan.strategy);
    if (!strategy.bucketed) continue;
    return fmt::format(
        "{} is Megatron's, and is priced here with the kernels of {}, so that strategies alone are "
        "compared; --stack megatron-core prices Megatron itself.",
        strategy.name, stack.id);
  }
  return "";
}

}  // namespace shardwright::cli
