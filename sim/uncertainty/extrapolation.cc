// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/extrapolation.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/features.h"

namespace shardwright::sim {
namespace {

using profiles::Uncertainty;

constexpr std::string_view kStackOnGpu = "stack on gpu";
constexpr std::string_view kSource = "source";
constexpr std::string_view kCell = "cell";
constexpr std::ptrdiff_t kOften = 3;  // cells
constexpr double kBitsPerByte = 8;

struct Number {
  std::string_view name;
  std::optional<double> value;  // none: plays no part in this run
};

struct Word {
  std::string_view kind;
  std::string word;
};

std::string stack_on_gpu(std::string_view stack, std::string_view gpu) {
  return fmt::format("{} on {}", stack, gpu);
}

/// As HeldOutRun::cell, and what it ran.
std::string cell_on_stack(std::string_view source, std::string_view gpu, std::string_view model,
                          std::string_view stack) {
  return fmt::format("{} | {} | {} | {}", source, gpu, model, stack);
}

std::array<Number, 7> numbers_of(const Model& model, const Cluster& cluster, const Plan& plan) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const bool over_nodes = plan.gpus > cluster.gpus_per_node;
  return {{{"seq_len", number(plan.seq_len)},
           {"tokens_per_micro_step", number(plan.seq_len) * number(plan.micro_batch)},
           {"gpus", number(plan.gpus)},
           {"network_gbps_per_node",
            over_nodes ? std::optional(cluster.node_net_bytes_per_s() * kBitsPerByte / 1e9)
                       : std::nullopt},
           {"parameters_billion", number(count_parameters(model).total(model.layers)) / 1e9},
           {"hidden", number(model.hidden)},
           {"vocab", number(model.vocab)}}};
}

std::array<Word, 6> knob_words(const Cluster& cluster, std::string_view stack, const Plan& plan) {
  return {{{"gpu", cluster.gpu.id},
           {"stack", std::string(stack)},
           {"strategy", std::string(name_of(plan.strategy))},
           {"recompute", plan.ckpt_layers == 0 ? "none" : recompute_name(plan)},
           {"attention", std::string(name_of(plan.attention))},
           {"offload", offload_name(plan)}}};
}

bool contains(const Uncertainty& uncertainty, std::string_view kind, std::string_view word) {
  const auto at = uncertainty.seen.find(kind);
  return at != uncertainty.seen.end() &&
         std::find(at->second.begin(), at->second.end(), word) != at->second.end();
}

void add_word(Uncertainty& uncertainty, std::string_view kind, std::string word) {
  std::vector<std::string>& words = uncertainty.seen[std::string(kind)];
  const auto at = std::lower_bound(words.begin(), words.end(), word);
  if (at == words.end() || *at != word) words.insert(at, std::move(word));
}

}  // namespace

void add_run(Uncertainty& uncertainty, const Model& model, const Cluster& cluster,
             std::string_view stack, const Plan& plan, std::string_view source) {
  for (const Number& number : numbers_of(model, cluster, plan)) {
    if (!number.value) continue;
    const std::array<double, 2> own = {*number.value, *number.value};
    auto& range = uncertainty.ranges.try_emplace(std::string(number.name), own).first->second;
    range = {std::min(range[0], own[0]), std::max(range[1], own[1])};
  }
  for (Word& word : knob_words(cluster, stack, plan)) {
    add_word(uncertainty, word.kind, std::move(word.word));
  }
  add_word(uncertainty, kStackOnGpu, stack_on_gpu(stack, cluster.gpu.id));
  add_word(uncertainty, kSource, std::string(source));
  add_word(uncertainty, kCell, cell_on_stack(source, cluster.gpu.id, model.name, stack));
}

std::vector<std::string> extrapolations(const profiles::Profile& profile, const Model& model,
                                        const Plan& plan) {
  const Uncertainty& uncertainty = profile.uncertainty;
  const Cluster& cluster = profile.cluster;
  const std::string& stack = profile.stack.family;
  const profiles::ModelParallelUncertainty& divided = profiles::model_parallel_uncertainty();
  const bool all_divide = !contains(uncertainty, "stack", stack) && divided.runs_of(stack);
  if (divides_replica(plan) || all_divide)
    return divided.extrapolations(stack, cluster.gpu.id, plan.gpus);
  std::vector<std::string> sentences;
  if (!uncertainty.known()) return sentences;
  bool all_words = true;
  for (const Word& word : knob_words(cluster, stack, plan)) {
    if (contains(uncertainty, word.kind, word.word)) continue;
    const bool is_gpu = word.kind == "gpu";
    if (is_gpu || word.kind == "stack") all_words = false;
    sentences.push_back(fmt::format("{} {}: {}", word.kind, word.word,
                                    is_gpu ? "no training run in the ledger" : "no published run"));
  }
  if (all_words && !seen_on_gpu(uncertainty, stack, cluster.gpu.id)) {
    sentences.push_back(
        fmt::format("framework {} with gpu {}: no published run", stack, cluster.gpu.id));
  }
  for (const Number& number : numbers_of(model, cluster, plan)) {
    const auto at = uncertainty.ranges.find(number.name);
    if (!number.value || at == uncertainty.ranges.end()) continue;
    const auto& [low, high] = at->second;
    // A rate computed back from bytes may differ in its last digit.
    if (*number.value > high * (1 + 1e-9)) {
      sentences.push_back(fmt::format("{} {:.7g} is above the largest fitted, {:.7g}", number.name,
                                      *number.value, high));
    } else if (*number.value < low * (1 - 1e-9)) {
      sentences.push_back(fmt::format("{} {:.7g} is below the smallest fitted, {:.7g}", number.name,
                                      *number.value, low));
    }
  }
  return sentences;
}

bool seen_on_gpu(const Uncertainty& uncertainty, std::string_view stack, std::string_view gpu) {
  return contains(uncertainty, kStackOnGpu, stack_on_gpu(stack, gpu));
}

bool has_seen_often(const Uncertainty& uncertainty, std::string_view stack, std::string_view gpu) {
  const auto cells = uncertainty.seen.find(kCell);
  if (cells == uncertainty.seen.end()) return false;
  const std::string of_gpu = " | " + std::string(gpu) + " | ",
                    of_stack = " | " + std::string(stack);
  return std::count_if(cells->second.begin(), cells->second.end(), [&](const std::string& cell) {
           return cell.ends_with(of_stack) && cell.find(of_gpu) != std::string::npos;
         }) >= kOften;
}

bool has_seen_gpu(const Uncertainty& uncertainty, std::string_view gpu) {
  return contains(uncertainty, "gpu", gpu);
}

bool has_seen_source(const Uncertainty& uncertainty, std::string_view source) {
  return contains(uncertainty, kSource, source);
}

bool has_seen_cell(const Uncertainty& uncertainty, std::string_view source, std::string_view stack,
                   std::string_view gpu, std::string_view model) {
  return contains(uncertainty, kCell, cell_on_stack(source, gpu, model, stack));
}

}  // namespace shardwright::sim
