// SPDX-License-Identifier: Apache-2.0
#include "sim/core/features.h"

#include <fmt/core.h>

#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "sim/core/plan.h"

namespace shardwright {
namespace {

constexpr auto kFeatureWords = words_up_to<Feature::kContextOfRecurrence>(
    "tensor", "pipeline", "context", "expert", "adapters", "precision", "precision-in-groups",
    "optimizers", "activation-offload", "module-recompute", "bucketed-strategies", "cuda-graphs",
    "expert-choices", "overlap-choices", "quantized", "context-of-recurrence");

std::string size_is(std::string_view name, std::int64_t value) {
  return fmt::format("{} is {}", name, value);
}

/// The setting that asks for a feature that the plan has.
std::string asked(const Plan& plan, Feature feature) {
  const Parallelism& p = plan.parallel;
  const Numerics& n = plan.numerics;
  switch (feature) {
    case Feature::kTensor:
      return size_is("tp", p.tp);
    case Feature::kPipeline:
      if (p.pp > 1) return size_is("pp", p.pp);
      if (p.virtual_stages > 1) return size_is("virtual_stages", p.virtual_stages);
      return fmt::format("pp_layout is {}", p.pp_layout);
    case Feature::kContext:
    case Feature::kContextOfRecurrence:
      return size_is("cp", p.cp);
    case Feature::kExpert:
      return p.ep > 1 ? size_is("ep", p.ep) : size_is("etp", p.etp);
    case Feature::kAdapters:
      return size_is("lora", n.lora);
    case Feature::kPrecision:
      return fmt::format("precision is {}", name_of(n.precision));
    case Feature::kPrecisionInGroups: {
      const Feature group = p.tp > 1   ? Feature::kTensor
                            : p.pp > 1 ? Feature::kPipeline
                            : p.cp > 1 ? Feature::kContext
                                       : Feature::kExpert;
      return fmt::format("precision is {} and {}", name_of(n.precision), asked(plan, group));
    }
    case Feature::kOptimizer:
      return fmt::format("optimizer is {}", name_of(n.optimizer));
    case Feature::kActivationOffload:
      return "offload is activations";
    case Feature::kModuleRecompute:
      return fmt::format("recompute is {}", recompute_name(plan));
    case Feature::kBucketedStrategy:
      return fmt::format("strategy is {}", name_of(plan.strategy));
    case Feature::kCudaGraphs:
      return fmt::format("cuda_graphs is {}", name_of(*p.cuda_graphs));
    case Feature::kExpertChoices:
      if (p.dispatcher) return fmt::format("dispatcher is {}", name_of(*p.dispatcher));
      if (p.ep_overlap.value_or(false)) return "ep_overlap is on";
      if (p.expert_capacity) return fmt::format("expert_capacity is {}", *p.expert_capacity);
      return fmt::format("expert_load is {}", to_text(*p.expert_load));
    case Feature::kOverlapChoices:
      return "overlap_grad_reduce or overlap_param_gather is chosen";
    case Feature::kQuantized:
      return fmt::format("quantize is {}", name_of(n.quantize));
  }
  return {};
}

}  // namespace

bool divides_replica(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  return p.replica() * p.ep * p.etp != 1;
}

Features features_of(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  const Numerics& n = plan.numerics;
  Features found;
  const auto add = [&](Feature feature, bool asks) {
    if (asks) found.add(feature);
  };
  add(Feature::kTensor, p.tp != 1);
  add(Feature::kPipeline, p.pp != 1 || p.virtual_stages != 1 || !p.pp_layout.empty());
  add(Feature::kContext, p.cp != 1);
  add(Feature::kExpert, p.ep != 1 || p.etp != 1);
  add(Feature::kAdapters, n.lora != 0);
  add(Feature::kPrecision, n.precision != Precision::kBf16);
  add(Feature::kPrecisionInGroups, n.precision != Precision::kBf16 && divides_replica(plan));
  add(Feature::kOptimizer, n.optimizer != Optimizer::kAdamw);
  add(Feature::kActivationOffload, plan.offload == Offload::kActivations);
  add(Feature::kModuleRecompute, (plan.pieces & kMegatronPieces) != 0);
  add(Feature::kBucketedStrategy, info_of(plan.strategy).bucketed);
  add(Feature::kCudaGraphs, p.cuda_graphs.value_or(CudaGraphs::kNone) != CudaGraphs::kNone);
  add(Feature::kExpertChoices,
      p.dispatcher || p.ep_overlap.value_or(false) || p.expert_capacity || p.expert_load);
  add(Feature::kOverlapChoices, p.overlap_grad_reduce || p.overlap_param_gather);
  add(Feature::kQuantized, n.quantize != Quantize::kNone);
  return found;
}

bool divides_models(Features does) {
  constexpr Features kAll = {Feature::kTensor, Feature::kPipeline, Feature::kContext,
                             Feature::kExpert};
  return !kAll.without(does).any();
}

Features features_named(const std::vector<std::string>& words) {
  Features found;
  for (const std::string& word : words) {
    if (const auto feature = value_in<Feature>(kFeatureWords, word)) found.add(*feature);
  }
  return found;
}

const std::vector<std::string>& feature_words() {
  static const std::vector<std::string> words(kFeatureWords.begin(), kFeatureWords.end());
  return words;
}

std::string beyond(const Plan& plan, Features does) {
  const Features lacks = features_of(plan).without(does);
  for (int i = 0; i < kFeatures; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (lacks.has(feature)) return asked(plan, feature);
  }
  return {};
}

void refuse_beyond(const Plan& plan, Features does, std::string_view who,
                   std::string_view expected) {
  const std::string what = beyond(plan, does);
  if (!what.empty()) throw InvalidPlan(fmt::format("{}, but {}, expected {}", what, who, expected));
}

}  // namespace shardwright
