// SPDX-License-Identifier: Apache-2.0
// The software that executes the step. It decides which operations exist, which tensors are kept
// for backward, what the host costs and how memory is allocated. A Stack is data
// (profiles/data/stacks/*.json); sim/program/layer_program.h turns it into the operations of a
// layer.
#pragma once

#include <string>
#include <vector>

namespace shardwright {

/// The memory-bound kernels that a framework runs for one operation, per element of the operation.
struct KernelGroup {
  double forward_bytes = 0;  // HBM traffic per element
  double backward_bytes = 0;
  int forward_kernels = 1;
  int backward_kernels = 1;
  double forward_efficiency = 1;  // of the GPU's streaming bandwidth
  double backward_efficiency = 1;
  std::vector<double> saved_bytes;     // per element, one entry for each tensor kept for backward
                                       // besides inputs and outputs
  double saved_bytes_per_token = 0;    // small statistics (mean, rstd)
  double forward_temporary_bytes = 0;  // per element, alive only while the operation runs
  double backward_temporary_bytes = 0;
};

/// What the optimizer does, per parameter of the shard it owns.
struct OptimizerImplementation {
  double bytes_per_parameter =
      30;  // HBM traffic with fp32 master and moments; scaled by dtype widths
  double temporary_master_copies =
      0;  // alive during the update, in the master dtype (foreach AdamW: 1)
  int kernels_per_tensor = 1;
  double efficiency = 1;
  bool foreach = false;  // one launch for many tensors
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

enum class MemoryManager { kStatic, kCachingAllocator };

/// How PyTorch's caching allocator is set (PYTORCH_CUDA_ALLOC_CONF); nothing to a static stack.
struct AllocatorSettings {
  bool expandable_segments = false;
  double max_split_bytes = 0;  // max_split_size_mb, in bytes; 0: none
};

/// How the stack divides a replica of the model (sim/parallel). The engine of data-parallel steps
/// reads none of it.
struct ParallelSoftware {
  bool supported = false;  // tensor, pipeline and context parallelism exist
  /// Without them: products of another type than bf16 exist.
  bool other_precisions = false;
  /// Also what the plan divides over nothing but data parallelism is predicted by sim/parallel.
  bool always = false;
  bool fused_attention = true;           // false: attention is eager whatever the plan says
  bool vocabulary_parallel_loss = true;  // false: every tensor rank gathers all logits
  /// Products of eager attention run on the fp32 cores where a head's row is not whole 16 bytes.
  bool tensor_cores_want_16_bytes = false;
  bool keeps_small_gradients = false;  // beside fp32 ones, those of the weights' type
  bool blocking_launches = false;      // the host waits for every kernel (CUDA_LAUNCH_BLOCKING)
  double score_bytes = 2;              // eager attention keeps for backward, per score ...
  double score_working_bytes = 4;      // ... and makes while its own backward runs
  double score_forward_traffic_bytes = 22;  // that eager attention moves, per score
  double score_backward_traffic_bytes = 26;
  /// Traffic per element of norms where layers are checkpointed whole; 0: as elsewhere.
  double checkpointed_norm_forward_bytes = 0, checkpointed_norm_backward_bytes = 0;
  double fragmentation = 0;             // reserved beyond allocated, per byte that comes and goes
  bool async_tensor_backward = true;    // collectives of the input's gradient run beside products
  bool accumulates_in_product = true;   // weight gradients are added up by the product's own kernel
  double gradient_bytes = 4;            // of an accumulated gradient, per parameter
  bool blocking_transfers = true;       // stages without virtual ones wait for each exchange
  double transfer_sync_s = 0;           // device idle after each such exchange
  bool overlapped_interleaving = true;  // with virtual stages only who needs a transfer waits
  bool overlap_grad_reduce = false;     // where the plan does not say
  bool overlap_param_gather = false;
  std::string tp_overlap = "none";
  std::string cp_comm = "ring";
  std::string dispatcher = "allgather";
  std::string cuda_graphs = "none";
  double bucket_parameters = 40e6;  // the more of this and bucket_parameters_per_rank * ranks
  double bucket_parameters_per_rank = 1e6;
  bool reshards_after_forward = true;    // sharded parameters, without pipeline
  double communicator_bytes = 0;         // that each group's communicator holds
  double layer_saved_bytes = 0;          // per hidden element and layer, beyond what kernels keep
  double host_sync_s = 0;                // from a result that the host waits for to the next kernel
  double graph_launch_s = 0;             // of the host for a layer that a graph holds
  double expert_launch_s = 0;            // of the host, added to each kernel of one expert's rows
  double expert_imbalance = 1;           // rows of the busiest rank's experts over the mean
  bool grouped_in_one_kernel = false;    // products of all experts, else one after the other
  bool overlaps_shared_experts = false;  // they run beside the exchange of tokens
  int dispatch_sms = 20;                 // held by kernels that send tokens to experts
  double permute_efficiency = 0.5;       // of streaming bandwidth, rows gathered by token
  double cast_efficiency = 0.7;          // casts to fewer bits with their transposes
  double step_jitter_per_doubling = 0;   // of a step's time, per doubling of nodes beyond one
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
  std::string family;  // the stack that this one is an edition of, or its own id
  std::string description;
  MemoryManager memory = MemoryManager::kCachingAllocator;
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
  bool no_sync = false;   // gradients are reduced after the last micro-step only; until then every
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
  double gradient_accumulate_bytes = 12;  // per parameter: adding a micro-step's gradient

  OptimizerImplementation optimizer;
  double gradient_norm_bytes_per_parameter = 4;  // norm; the clip's multiply is counted as 8 more
  HostCosts host;
  CopyEfficiencies copies;
  ParallelSoftware parallel;
};

}  // namespace shardwright
