// SPDX-License-Identifier: Apache-2.0
#include "sim/core/parallelism.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/words.h"
#include "sim/core/plan.h"

namespace shardwright {
namespace {

template <typename Enum>
constexpr auto kWords = nullptr;
template <>
constexpr std::array<std::string_view, kPipelineKinds> kWords<PipelineKind> = {
#define PIPELINE_SCHEDULE(id, name, ...) name,
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
};
template <>
constexpr std::array<std::string_view, 3> kWords<ContextComm> = {"ring", "all-gather", "a2a"};
template <>
constexpr std::array<std::string_view, 4> kWords<Dispatcher> = {"allgather", "alltoall", "deepep",
                                                                "hybridep"};
template <>
constexpr std::array<std::string_view, 3> kWords<TensorOverlap> = {"none", "userbuffers", "async"};
template <>
constexpr std::array<std::string_view, 5> kWords<CudaGraphs> = {"none", "attention", "router",
                                                                "layers", "step"};
template <>
constexpr std::array<std::string_view, 4> kWords<Precision> = {"bf16", "fp16", "fp8", "nvfp4"};
template <>
constexpr std::array<std::string_view, 5> kWords<Fp8Recipe> = {"delayed", "tensorwise", "rowwise",
                                                               "block", "mxfp8"};
template <>
constexpr std::array<std::string_view, 4> kWords<Optimizer> = {"adamw", "adamw-8bit", "muon",
                                                               "sgd"};
template <>
constexpr std::array<std::string_view, 4> kWords<Quantize> = {"none", "nf4", "int8", "fp8"};
template <>
constexpr std::array<std::string_view, 3> kWords<Adapted> = {"all", "attention", "qkv"};

}  // namespace

template <typename Enum>
std::optional<Enum> parallel_word(std::string_view name) {
  return value_in<Enum>(kWords<Enum>, name);
}

template <typename Enum>
std::string words_of() {
  return fmt::format("{}", fmt::join(kWords<Enum>, ", "));
}

#define SHARDWRIGHT_WORDS(Enum)                                 \
  std::string_view name_of(Enum value) {                        \
    return name_in(kWords<Enum>, value);                        \
  }                                                             \
  template std::optional<Enum> parallel_word(std::string_view); \
  template std::string words_of<Enum>()
SHARDWRIGHT_WORDS(PipelineKind);
SHARDWRIGHT_WORDS(ContextComm);
SHARDWRIGHT_WORDS(Dispatcher);
SHARDWRIGHT_WORDS(TensorOverlap);
SHARDWRIGHT_WORDS(CudaGraphs);
SHARDWRIGHT_WORDS(Precision);
SHARDWRIGHT_WORDS(Fp8Recipe);
SHARDWRIGHT_WORDS(Optimizer);
SHARDWRIGHT_WORDS(Quantize);
SHARDWRIGHT_WORDS(Adapted);
#undef SHARDWRIGHT_WORDS

std::string beyond_data_parallel(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  const Numerics& n = plan.numerics;
  const std::array<std::pair<std::string_view, std::int64_t>, 7> sizes = {
      {{"tp", p.tp},
       {"pp", p.pp},
       {"virtual_stages", p.virtual_stages},
       {"cp", p.cp},
       {"ep", p.ep},
       {"etp", p.etp},
       {"lora", n.lora + 1}}};
  for (const auto& [name, value] : sizes) {
    if (value != 1) return fmt::format("{} is {}", name, name == "lora" ? n.lora : value);
  }
  if (n.precision != Precision::kBf16) {
    return fmt::format("precision is {}", name_of(n.precision));
  }
  if (n.optimizer != Optimizer::kAdamw) {
    return fmt::format("optimizer is {}", name_of(n.optimizer));
  }
  if (plan.offload == Offload::kActivations) return "offload is activations";
  if ((plan.pieces & kMegatronPieces) != 0)
    return fmt::format("recompute is {}", recompute_name(plan));
  if (info_of(plan.strategy).software == Software::kMegatron) {
    return fmt::format("strategy is {}", name_of(plan.strategy));
  }
  // What divides nothing here is no choice.
  if (p.cuda_graphs.value_or(CudaGraphs::kNone) != CudaGraphs::kNone)
    return fmt::format("cuda_graphs is {}", name_of(*p.cuda_graphs));
  if (p.dispatcher) return fmt::format("dispatcher is {}", name_of(*p.dispatcher));
  if (p.ep_overlap.value_or(false)) return "ep_overlap is on";
  if (p.expert_capacity) return fmt::format("expert_capacity is {}", *p.expert_capacity);
  if (p.expert_load) return fmt::format("expert_load is {}", to_text(*p.expert_load));
  if (p.overlap_grad_reduce || p.overlap_param_gather)
    return "overlap_grad_reduce or overlap_param_gather is chosen";
  if (!p.pp_layout.empty()) return fmt::format("pp_layout is {}", p.pp_layout);
  return "";
}

void refuse_parallelism(const Plan& plan, std::string_view who, std::string_view expected) {
  const std::string what = beyond_data_parallel(plan);
  if (what.empty()) return;
  throw InvalidPlan(fmt::format("{}, but {}, expected {}", what, who, expected));
}

}  // namespace shardwright
