// SPDX-License-Identifier: Apache-2.0
// The software that executes the step. It decides which operations exist, which tensors are kept
// for backward, what the host costs and how memory is allocated. A Stack is data
// (profiles/data/stacks/*.json); sim/program/layer_program.h turns it into the operations of a
// layer.
#pragma once

#include <string>

#include "sim/core/kernel_group.h"
#include "sim/core/parallel_software.h"

namespace shardwright {

/// What the optimizer does, per parameter of the shard it owns.
struct OptimizerImplementation {
  double bytes_per_parameter =
      30;  // HBM traffic with fp32 master and moments; scaled by dtype widths
  double temporary_master_copies =
      0;  // alive during the update, in the master dtype (foreach AdamW: 1)
  int kernels_per_tensor = 1;
  double efficiency = 1;
  bool foreach = false;  // one launch for many tensors
  /// Gradients are summed in flat buckets of their own, whose parts are what ranks own (Megatron's
  /// distributed optimizer and FSDP).
  bool bucketed = false;
};

struct HostCosts {
  double forward_launch_s = 5e-6;  // per kernel
  double backward_launch_s = 4e-6;
  double collective_launches = 4;  // forward launches that issuing a collective takes as long as
  double unit_hook_s = 0;          // per sharded unit and direction: Python hooks, bookkeeping
  double limiter_wakeup_s = 0;     // after the host waited for a device event
  double device_allocation_s =
      0;              // per cudaMalloc or cudaFree inside a step, the device being idle
  double step_s = 0;  // once per step with the device idle: data, logging, synchronisations
  int step_synchronizations = 0;  // device drains per step (loss.item(), gradient norm)
};

/// Efficiency of the copies that sharding adds, as a share of the GPU's streaming bandwidth.
struct CopyEfficiencies {
  double cast = 1;         // bf16 -> fp32 of a flat gradient
  double concatenate = 1;  // many tensors into one
  double copy = 1;         // one tensor into another of the same dtype
  double scale = 1;        // in-place multiply
  double add = 1;          // accumulate
};

/// Planned arenas, or PyTorch's allocator: replayed over the step, or what it reserves beyond the
/// tensors estimated (ParallelSoftware::fragmentation).
enum class MemoryManager { kStatic, kCachingAllocator, kEstimatedAllocator };

/// How PyTorch's caching allocator is set (PYTORCH_CUDA_ALLOC_CONF); nothing to a static stack.
struct AllocatorSettings {
  bool expandable_segments = false;
  double max_split_bytes = 0;  // max_split_size_mb, in bytes; 0: none
};

/// Own attention on a GPU that spends a warp on a query and a key: instructions of the loop, by the
/// type of the heads. 0: the software has none.
struct NaiveAttention {
  double forward_instructions = 0;
  double backward_instructions = 0;  // of both passes
  double forward_fp32_instructions = 0;
  double backward_fp32_instructions = 0;
};

struct Stack {
  std::string id;
  std::string family;  // the stack that this one is an preset of, or its own id
  std::string description;
  MemoryManager memory = MemoryManager::kCachingAllocator;
  std::vector<std::string> strategies;  // that it has; empty: those of its kind of memory
  AllocatorSettings allocator;
  std::string attention_kernel = "fa2";  // which of the GPU's attention parameter sets applies
  NaiveAttention naive_attention;        // and what runs where that kernel refuses
  bool packs_documents = false;          // several to a sequence, masked from each other
  double gemm_efficiency = 1;            // against the library the GEMM model was fitted on
  bool splits_large_elementwise =
      true;                // kernels over 2^31 bytes run as several (PyTorch's TensorIterator)
  bool fused_qkv = false;  // executes q, k and v as one product whatever the model stores
  bool fused_gate_up = false;
  bool norm_saves_input =
      false;  // the norm keeps its input itself instead of an upcast copy (fused kernels)
  bool repeats_kv_heads = false;  // k and v are expanded to all heads before attention
  bool wraps_embedding_and_head =
      false;  // embedding and head are sharded units of their own, not part of the root
  bool fsdp1_forward_prefetch =
      false;                        // FSDP1 gathers the next unit before the current one computes
  bool hsdp_on_fsdp1 = true;        // hybrid sharding as in FSDP1; otherwise as in FSDP2
  bool loss_upcasts_logits = true;  // logits are copied to fp32 before the loss
  bool keeps_logits = false;        // the trainer holds the model's output until backward has ended
  bool keeps_key_values = false;    // use_cache: keys and values of all layers stay as long
  bool no_sync = false;   // gradients are reduced after the last micro-batch only; until then every
                          // rank holds whole ones in the type of the reduction
  bool autocast = false;  // parameters and residual stream are fp32, parameters are gathered so;
                          // products cast their operands to the plan's type

  KernelGroup embedding;  // per hidden element
  KernelGroup norm;       // per hidden element; the output is counted as the next product's input
  KernelGroup rope;       // per element of q and k
  KernelGroup gated_activation;  // per ffn element: act(gate)*up
  KernelGroup plain_activation;  // per ffn element: gelu(up)
  KernelGroup residual;          // per hidden element
  KernelGroup loss;              // per logit
  double loss_chunk_tokens = 0;  // 0: all logits at once
  /// A checkpointed layer is recomputed to its end, not only as far as backward needs it.
  bool recomputes_whole_layers = false;
  double gradient_accumulate_bytes = 12;  // per parameter: adding a micro-batch's gradient

  OptimizerImplementation optimizer;
  double gradient_norm_bytes_per_parameter = 4;  // norm; the clip's multiply is counted as 8 more
  HostCosts host;
  CopyEfficiencies copies;
  ParallelSoftware parallel;
};

}  // namespace shardwright
