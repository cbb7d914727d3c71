// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/render/words/model_parallel.h"
#include "cli/streams.h"
#include "cli/text.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/layout.h"

namespace shardwright::cli {

std::string checkpoint_words(const Plan& plan) {
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return "nothing recomputed";
  return fmt::format("{} layer{} {}", plan.ckpt_layers, plan.ckpt_layers == 1 ? "" : "s",
                     recompute_name(plan));
}

std::string plan_words(const Plan& plan) {
  const Plan usual;
  // Model-parallel frameworks has one usual strategy.
  const std::string layout = model_parallel_words(plan);
  const bool named = layout.empty() || plan.strategy != Strategy::kDistributedOptimizer;
  std::string text = named ? std::string(name_of(plan.strategy)) : "";
  if (!layout.empty()) text += (named ? ", " : "") + layout;
  if (info_of(plan.strategy).hybrid && plan.shard_group > 0)
    text += fmt::format(" of {}", plan.shard_group);
  text += fmt::format(", {} x {}, {}", plan.micro_batch, plan.grad_accum, checkpoint_words(plan));
  if (plan.document_length() < plan.seq_len)
    text += fmt::format(", documents of {}", plan.packed_length);
  if (plan.buffers != usual.buffers)
    text += fmt::format(", {} buffer{}", plan.buffers, plan.buffers == 1 ? "" : "s");
  if (plan.attention != usual.attention)
    text += fmt::format(", {} attention", name_of(plan.attention));
  if (plan.deterministic) text += ", deterministic";
  if (plan.loss_chunks > 1) text += fmt::format(", loss in {} pieces", plan.loss_chunks);
  if (plan.allocator != usual.allocator)
    text += fmt::format(", {} allocator", name_of(plan.allocator));
  if (plan.param_dtype != usual.param_dtype)
    text += fmt::format(", {} parameters", name_of(plan.param_dtype));
  if (plan.reduce_dtype != usual.reduce_dtype)
    text += fmt::format(", {} reduction", name_of(plan.reduce_dtype));
  if (plan.master_dtype != usual.master_dtype)
    text += fmt::format(", {} master weights", name_of(plan.master_dtype));
  if (plan.moment_dtype != usual.moment_dtype)
    text += fmt::format(", {} moments", name_of(plan.moment_dtype));
  return text;
}

std::string part_of_node_words(const Cluster& cluster, std::int64_t gpus) {
  const std::int64_t node = cluster.gpus_per_node;
  if (gpus <= 1 || gpus >= node || is_rack(node) || cluster.gpu.is_processor()) return "";
  return fmt::format("a part of one node: {} of its {} GPUs, with nothing beside them", gpus, node);
}

std::string peak_type_words(const Gpu& gpu, const Plan& plan) {
  if (gpu.is_processor()) return "fp32";
  return fmt::format("dense {}", name_of(plan.numerics.precision));
}

std::vector<std::string> model_notes(const Model& model, std::int64_t longest) {
  std::vector<std::string> notes;
  if (!model.ignored_keys.empty()) {
    notes.push_back(fmt::format("{}: its configuration has keys that are ignored: {}", model.name,
                                fmt::join(model.ignored_keys, ", ")));
  }
  if (!model.dropout.empty()) {
    notes.push_back(
        fmt::format("{}: {}; dropout is not modelled, so its masks and their time are "
                    "not in the answer",
                    model.name, model.dropout));
  }
  if (model.max_positions > 0 && longest > model.max_positions) {
    notes.push_back(fmt::format("{}: a sequence has {} tokens, but the model was made for {}",
                                model.name, longest, model.max_positions));
  }
  return notes;
}

void tell_notes(const Terminal& err, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    fmt::print(messages(), "{} {}\n", paint(err, Style::kYellow, "note:"),
               printable(note, err.utf8));
  }
}

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
