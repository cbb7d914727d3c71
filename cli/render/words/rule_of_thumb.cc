// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/rule_of_thumb.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/text/quantity.h"

namespace shardwright::cli {
namespace {

// bf16 weights and gradients, fp32 master weights and moments; with fp32 gradients and copies.
constexpr double kLeastOfRule = 16, kMostOfRule = 24;

constexpr std::array kStates = {MemoryCategory::kParameters, MemoryCategory::kMaster,
                                MemoryCategory::kGradients, MemoryCategory::kOptimizer};

struct Thumb {
  double parameters = 0, gpus = 1;
  Bytes states = 0;
  std::vector<std::pair<std::string, Bytes>> left_out;  // largest first
};

Thumb thumb_of(const Model& model, const sim::Prediction& prediction) {
  const sim::MemoryPrediction& memory = prediction.memory;
  Thumb thumb;
  thumb.parameters = static_cast<double>(count_parameters(model).total(model.layers));
  thumb.gpus = static_cast<double>(prediction.plan.gpus);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const Bytes held = memory.breakdown_bytes[static_cast<std::size_t>(i)];
    if (std::find(kStates.begin(), kStates.end(), category) != kStates.end()) {
      thumb.states += held;
    } else if (held > 0) {
      thumb.left_out.emplace_back(name_of(category), held);
    }
  }
  const Bytes unused = memory.peak_reserved_bytes - memory.peak_allocated_bytes;
  if (unused > 0) thumb.left_out.emplace_back("reserved but unused", unused);
  if (memory.runtime_bytes > 0) thumb.left_out.emplace_back("runtime", memory.runtime_bytes);
  std::stable_sort(thumb.left_out.begin(), thumb.left_out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return thumb;
}

}  // namespace

std::vector<std::string> rule_of_thumb_sentences(const Model& model,
                                                 const sim::Prediction& prediction) {
  const Thumb thumb = thumb_of(model, prediction);
  std::vector<std::string> parts;
  for (const auto& [name, held] : thumb.left_out)
    parts.push_back(fmt::format("{} {}", name, bytes(held)));
  std::vector<std::string> sentences;
  sentences.push_back(fmt::format(
      "Rule of thumb: {:g} to {:g} bytes a parameter are {} to {} for the whole model, {} to {} "
      "for "
      "each of {:g} GPUs that share all of it; predicted are {} of weights, gradients and moments.",
      kLeastOfRule, kMostOfRule, bytes(kLeastOfRule * thumb.parameters),
      bytes(kMostOfRule * thumb.parameters), bytes(kLeastOfRule * thumb.parameters / thumb.gpus),
      bytes(kMostOfRule * thumb.parameters / thumb.gpus), thumb.gpus, bytes(thumb.states)));
  if (!parts.empty()) {
    sentences.push_back(fmt::format("What the rule leaves out: {}; {} in all.",
                                    fmt::join(parts, ", "), bytes(prediction.memory.total_bytes)));
  }
  return sentences;
}

nlohmann::ordered_json rule_of_thumb_json(const Model& model, const sim::Prediction& prediction) {
  const Thumb thumb = thumb_of(model, prediction);
  nlohmann::ordered_json left_out = nlohmann::ordered_json::object();
  for (const auto& [name, held] : thumb.left_out) left_out[name] = held;
  return {
      {"bytes_per_parameter", {kLeastOfRule, kMostOfRule}},
      {"whole_model_bytes", {kLeastOfRule * thumb.parameters, kMostOfRule * thumb.parameters}},
      {"evenly_shared_bytes",
       {kLeastOfRule * thumb.parameters / thumb.gpus, kMostOfRule * thumb.parameters / thumb.gpus}},
      {"predicted_states_bytes", thumb.states},
      {"left_out_bytes", std::move(left_out)},
      {"words", rule_of_thumb_sentences(model, prediction)}};
}

}  // namespace shardwright::cli
