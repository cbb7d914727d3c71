// SPDX-License-Identifier: Apache-2.0
// How one replica of a model is divided over GPUs, beside data parallelism: tensor, pipeline,
// context and expert parallel, with the choices that belong to each.
//
// The defaults divide nothing. What may be combined with what, for a model, is said by
// check_parallelism; which ranks form a group is sim/core/layout.h's. Optional values that are
// not given follow the software (sim/core/stack.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/base/words.h"
#include "sim/core/expert_load.h"
#include "sim/core/pipeline.h"

namespace shardwright {

struct Model;
struct Plan;

enum class ContextComm : std::uint8_t { kRing, kAllGather, kAllToAll };
SHARDWRIGHT_WORDS(ContextComm, kAllToAll, "ring", "all-gather", "a2a");
enum class Dispatcher : std::uint8_t { kAllGather, kAllToAll, kDeepEp, kHybridEp };
SHARDWRIGHT_WORDS(Dispatcher, kHybridEp, "allgather", "alltoall", "deepep", "hybridep");
/// How collectives of the tensor group hide behind products: TransformerEngine's userbuffers,
/// PyTorch's async tensor parallelism.
enum class TensorOverlap : std::uint8_t { kNone, kUserbuffers, kAsync };
SHARDWRIGHT_WORDS(TensorOverlap, kAsync, "none", "userbuffers", "async");
/// What the host no longer issues kernel by kernel. Megatron's scopes: attention is attn, router
/// moe_router with moe_preprocess (or mlp), layers both of them, step full_iteration.
enum class CudaGraphs : std::uint8_t { kNone, kAttention, kRouter, kLayers, kStep };
SHARDWRIGHT_WORDS(CudaGraphs, kStep, "none", "attention", "router", "layers", "step");
/// Matrices of a layer beside which LoRA's adapters are: all, those of attention, or those that
/// make queries, keys and values.
enum class Adapted : std::uint8_t { kAll, kAttention, kQkv };
SHARDWRIGHT_WORDS(Adapted, kQkv, "all", "attention", "qkv");

struct Parallelism {
  std::int64_t tp = 1;
  std::optional<bool> sp;  // sequence parallel; not given: where tp > 1
  std::int64_t pp = 1;
  std::int64_t virtual_stages = 1;          // chunks of a stage
  std::optional<PipelineKind> pp_schedule;  // not given: 1f1b, interleaved with virtual stages
  std::string pp_layout;                    // Megatron's layout string; empty: equal stages
  std::int64_t cp = 1;
  std::optional<ContextComm> cp_comm;
  std::int64_t ep = 1;
  std::int64_t etp = 1;
  std::optional<Dispatcher> dispatcher;
  std::optional<bool> ep_overlap;
  /// Rows that an expert takes at most, over the balanced number; further tokens pass it by. Not
  /// given: as many as come.
  std::optional<double> expert_capacity;
  /// Not given: as routers of published models choose (Routing::kReal).
  std::optional<ExpertLoad> expert_load;
  std::optional<TensorOverlap> tp_overlap;
  /// Gradients are reduced while backward runs, parameters gathered while forward does.
  std::optional<bool> overlap_grad_reduce, overlap_param_gather;
  std::optional<CudaGraphs> cuda_graphs;
  std::string rank_order = kUsualOrder;  // fastest first

  bool operator==(const Parallelism&) const = default;

  static constexpr const char* kUsualOrder = "tp-cp-ep-dp-pp";
  /// Ranks that hold one copy of the model's dense part.
  std::int64_t replica() const { return tp * pp * cp; }
  bool sequence_parallel() const { return sp.value_or(true) && tp > 1; }
  PipelineKind schedule() const {
    return pp_schedule.value_or(virtual_stages > 1 ? PipelineKind::kInterleaved
                                                   : PipelineKind::kOneForwardOneBackward);
  }
  /// Nothing is divided, and nothing is said of what divides.
  bool plain() const { return *this == Parallelism{}; }
};

/// What layers multiply in; the rest of a step stays in the plan's parameter type.
enum class Precision : std::uint8_t { kBf16, kFp16, kFp8, kNvfp4 };
SHARDWRIGHT_WORDS(Precision, kNvfp4, "bf16", "fp16", "fp8", "nvfp4");
enum class Fp8Recipe : std::uint8_t { kDelayed, kTensorwise, kRowwise, kBlock, kMxfp8 };
SHARDWRIGHT_WORDS(Fp8Recipe, kMxfp8, "delayed", "tensorwise", "rowwise", "block", "mxfp8");
enum class Optimizer : std::uint8_t { kAdamw, kAdamw8bit, kMuon, kSgd };
SHARDWRIGHT_WORDS(Optimizer, kSgd, "adamw", "adamw-8bit", "muon", "sgd");
/// How frozen weights are kept beside adapters: four bits in blocks (QLoRA), or eight.
enum class Quantize : std::uint8_t { kNone, kNf4, kInt8, kFp8 };
SHARDWRIGHT_WORDS(Quantize, kFp8, "none", "nf4", "int8", "fp8");

struct Numerics {
  Precision precision = Precision::kBf16;
  std::optional<Fp8Recipe> fp8_recipe;
  bool fp8_params = false;  // parameters are kept and gathered in fp8
  Optimizer optimizer = Optimizer::kAdamw;
  std::int64_t lora = 0;  // rank of the adapters that are trained; 0: the model itself is
  Quantize quantize = Quantize::kNone;  // the frozen weights of the layers

  Fp8Recipe recipe() const { return fp8_recipe.value_or(Fp8Recipe::kTensorwise); }

  bool operator==(const Numerics&) const = default;
  bool plain() const { return *this == Numerics{}; }
};

/// Throws Error naming the first knob that is out of range, contradicts another one, or does not
/// divide the heads, layers, tokens or GPUs it is to divide, with the nearest values that do.
void check_parallelism(const Plan& plan, const Model& model);

}  // namespace shardwright
