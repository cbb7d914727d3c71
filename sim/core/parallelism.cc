// SPDX-License-Identifier: Apache-2.0
#include "sim/core/parallelism.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "sim/core/base/words.h"

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

}  // namespace shardwright
