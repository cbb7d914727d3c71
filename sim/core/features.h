// SPDX-License-Identifier: Apache-2.0
// What a plan asks of a framework beside sharding over data-parallel ranks, told by the values of
// its settings: one that says what would happen unsaid asks for nothing. Frameworks list what they
// do (ParallelSoftware::does); a capability check, a width or a word asks here and nowhere else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

struct Plan;

/// In the order in which a plan is refused for them. The words are those of stack files.
enum class Feature : std::uint8_t {
  kTensor,              // "tensor": tp
  kPipeline,            // "pipeline": pp, virtual_stages, pp_layout
  kContext,             // "context": cp
  kExpert,              // "expert": ep, etp
  kAdapters,            // "adapters": lora
  kPrecision,           // "precision": GEMMs in fp16, fp8, nvfp4
  kPrecisionInGroups,   // "precision-in-groups": the same beside tp, pp, cp or ep
  kOptimizer,           // "optimizers": others than AdamW with 32-bit state
  kActivationOffload,   // "activation-offload"
  kModuleRecompute,     // "module-recompute": Megatron's modules
  kBucketedStrategy,    // "bucketed-strategies": Megatron's
  kCudaGraphs,          // "cuda-graphs"
  kExpertChoices,       // "expert-choices": dispatcher, ep_overlap, expert_capacity, expert_load
  kOverlapChoices,      // "overlap-choices": overlap_grad_reduce, overlap_param_gather
  kQuantized,           // "quantized": frozen weights in 4 or 8 bits
  kContextOfRecurrence  // "context-of-recurrence": of the framework alone, with a model's
};
inline constexpr int kFeatures = 16;

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(std::initializer_list<Feature> features) {
    for (const Feature feature : features) add(feature);
  }
  constexpr void add(Feature feature) { bits_ |= 1U << static_cast<unsigned>(feature); }
  constexpr bool has(Feature feature) const {
    return (bits_ >> static_cast<unsigned>(feature) & 1U) != 0;
  }
  constexpr bool any() const { return bits_ != 0; }
  constexpr Features without(Features others) const { return Features(bits_ & ~others.bits_); }

 private:
  constexpr explicit Features(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_ = 0;
};

Features features_of(const Plan& plan);
/// Ranks share more than data: tp, pp, cp or ep is above one.
bool divides_replica(const Plan& plan);

/// Whether whatever does `does` divides models in every way: by tp, pp, cp and ep.
bool divides_models(Features does);
/// Those of a stack file's words.
Features features_named(const std::vector<std::string>& words);
const std::vector<std::string>& feature_words();

/// What of the plan asks for the first feature beyond `does`, as in "tp is 8"; empty: nothing.
std::string beyond(const Plan& plan, Features does);
/// Throws InvalidPlan that ends in `expected` where there is one.
void refuse_beyond(const Plan& plan, Features does, std::string_view who,
                   std::string_view expected);

}  // namespace shardwright
