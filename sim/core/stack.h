// SPDX-License-Identifier: Apache-2.0
// The software that executes the step. It decides which operations exist, which tensors are kept
// for backward, what the host costs and how memory is allocated. A Stack is data
// (profiles/data/stacks/*.json); sim/program/layer_program.h turns it into the operations of a
// layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/features.h"

namespace shardwright {

// The memory-bound kernels that a framework runs for one operation.

/// Per element of the operation.
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

// What a framework does in plans with tensor, pipeline, context or expert parallelism, LoRA or
// fewer bits than 16: the group `parallel` of its file (profiles/data/stacks). One struct a
// subject; a default is what holds of a framework whose file is silent.

/// TransformerEngine's userbuffers, where they differ from other overlap of GEMMs with the
/// collectives of tensor parallelism.
struct Userbuffers {
  // SMs of what runs whole beside a GEMM of backward; 0: as many as NCCL takes.
  int gather_sms = 0;      // the input of QKV or FC1, beside the gradient of the input
  int qkv_reduce_sms = 0;  // the gradient of the input, beside that of QKV's weight
  int fc1_reduce_sms = 0;  // and of FC1's
  /// Micro-batches whose weight gradient of the head waits for the flush of the pipeline.
  int deferred_head_gradients = 0;
};

/// Tensor parallelism around column-parallel GEMMs.
struct TensorSoftware {
  double overlap_splits = 1;           // pieces of a GEMM whose reduce-scatter runs meanwhile ...
  int overlap_sms = 0;                 // ... on so many SMs
  bool keeps_gathered_inputs = false;  // until backward, which else gathers them again
  /// Products of one input gather it each for itself (q, k and v; gate and up), and reduce their
  /// part of its gradient.
  bool gathers_each_product = false;
  /// Collectives concatenate along the first dimension, so parts of more than one sequence are
  /// copied into their places.
  bool concatenates_sequences = false;
  /// Async tensor parallelism is a pattern of one GEMM beside its collective that a compiler finds.
  bool async_by_pattern = false;
  bool sums_gradients_at_once = false;  // of one input, by one kernel
};

/// Context parallelism by a ring.
struct ContextSoftware {
  bool ring_by_all_gather = false;  // keys and values go round at once, sums are in fp32
  bool blocking_ring = false;       // nothing runs beside the collectives
};

/// How layers are divided into stages where the plan does not say.
struct StageSoftware {
  // Modules that are no layers but count as such where stages get equally many of them.
  std::int64_t modules_before = 0, modules_after = 0;  // embedding; last norm and head
  bool by_cost = false;                                // by parameters, the head among them
};

/// What optimizers that divide their state do with gradients.
struct GradientSoftware {
  /// Whole gradients are reduced over the data ranks, although each updates only its part: bytes of
  /// a parameter there, and what copies into buckets of that type and back move. 0: only the parts.
  double whole_bytes = 0, whole_copy_bytes = 0;
  /// Gradients of 16 bits: bytes of an owned parameter while its part is flattened and cast, and
  /// of the bucket that they come from.
  double flattened_bytes = 0, bucket_bytes = 0;
  /// Layers' gathers and reductions from and to buffers that NCCL knows (nccl_ub), with the
  /// framework's own FSDP inside one NVLink domain: SMs that they hold. 0: no such buffers.
  int registered_buffer_sms = 0;
};

/// Attention with sinks (GPT-OSS).
struct SinkSoftware {
  /// Of the rate of fused attention over all scores; it skips none that a window leaves out. 0: as
  /// other attention.
  double attention_share = 0;
  double fp8_backward_share = 0;  // the same of backward in fp8, which recipes turn on; 0: in bf16
  double fp8_input_bytes = 0;     // moved before it, an element of its input
};

/// Rotary embeddings whose sines and cosines are scaled (YaRN), by kernels of their own.
struct ScaledRope {
  bool unfused = false;
  KernelGroup kernels;  // per element of q and k
};

struct LossSoftware {
  /// Parts of the vocabulary are put together by kernels of their own: bytes a logit at the
  /// fullest, where logits are cast to fp32. 0: in place.
  double separate_parts_bytes = 0;
  /// Logits in the compute type stay until backward has ended, beside what the loss makes of them.
  bool keeps_output = false;
  bool row_per_block = false;  // a thread block has the logits of one token
};

/// GEMMs in fp8 and the casts before them.
struct Fp8Software {
  /// Where the GPU multiplies operands whichever dimension is last, none is transposed.
  bool reads_both_layouts = false;
  /// Backward keeps inputs in 16 bits, and every product casts both operands just before it: no
  /// weights are cast for a whole step.
  bool casts_for_each_product = false;
  bool norms_cast = false;        // norms write fp8 where the scale is known before
  double rowwise_gemm_share = 1;  // what GEMMs with a scale a row reach of those with one a tensor
  // Of streaming bandwidth; 0: ParallelSoftware::cast_efficiency.
  double cast_transpose_efficiency = 0;  // one scale, cast and transposed in one pass
  double mxfp8_cast_efficiency = 0;
  // Casts with one scale a tensor where no compiler fuses them; 0: fused.
  double eager_cast_bytes = 0;  // an element
  int eager_cast_kernels = 1;
};

/// Experts and the exchange of their tokens.
struct MoeSoftware {
  int gemm_streams = 1;              // over which experts' GEMMs run that are launched one by one
  bool fused_grouped_gemms = false;  // apply activation and MXFP8's casts, inside whole-step graphs
  bool exchanges_weights = false;    // of rows, in fp32, beside the rows
  double hybridep_link_share = 1;    // of the links' bandwidth, by HybridEP's copies
  /// Gini coefficient of the experts' rows where nothing forces balance, by the model's attention
  /// (multi-head, grouped-query, latent), of routers that a bias balances, and of routers that were
  /// trained without an auxiliary loss.
  double multi_head_load_gini = 0, grouped_query_load_gini = 0, latent_load_gini = 0;
  double bias_balanced_load_gini = 0, no_aux_loss_gini = 0;
  // Activation and biases of experts with biases by kernels of their own: traffic per element of
  // the activation, and of the rows that FC2 puts out.
  bool unfused_biases = false;
  double unfused_activation_forward_bytes = 0, unfused_activation_backward_bytes = 0;
  double unfused_bias_forward_bytes = 0, unfused_bias_backward_bytes = 0;
  int unfused_forward_kernels = 1, unfused_backward_kernels = 1;
};

/// Settings that the framework has, its defaults among them: what tuning may try.
struct SoftwareChoices {
  std::vector<std::string> tp_overlap, dispatcher, pp_schedule;
  bool ep_overlap = false;  // a micro-batch's all-to-alls hide behind another's products
};

struct ParallelSoftware {
  Features features() const { return features_named(does); }

  std::vector<std::string> does;  // beside sharding over data-parallel ranks: words of Feature
  bool fused_attention = true;    // false: attention is eager whatever the plan says
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
  double fragmentation = 0;            // reserved beyond allocated, per byte that comes and goes
  bool async_tensor_backward = true;   // collectives of the input's gradient run beside products
  bool accumulates_in_product = true;  // weight gradients are added up by the product's own kernel
  bool separate_bias_gradients =
      true;                        // by kernels of their own, not by the weight gradient's GEMM
  double gradient_bytes = 4;       // of an accumulated gradient, per parameter
  bool blocking_transfers = true;  // stages without virtual ones wait for each exchange
  double transfer_sync_s = 0;      // device idle after each such exchange
  double message_bytes_per_s = 0;  // most of one between GPUs of a node; 0: what links give
  bool overlapped_interleaving = true;  // with virtual stages only who needs a transfer waits
  bool overlap_grad_reduce = false;     // where the plan does not say
  bool overlap_param_gather = false;
  std::string tp_overlap = "none";
  std::string cp_comm = "ring";
  std::string dispatcher = "allgather";
  std::string cuda_graphs = "none";
  std::string adapted = "all";      // matrices of a layer beside which LoRA's adapters are
  double bucket_parameters = 40e6;  // the more of this and bucket_parameters_per_rank * ranks
  double bucket_parameters_per_rank = 1e6;
  bool reshards_after_forward = true;  // sharded parameters, without pipeline
  double communicator_bytes = 0;       // that each group's communicator holds
  double layer_saved_bytes = 0;        // per hidden element and layer, beyond what kernels keep
  double host_sync_s = 0;              // from a result that the host waits for to the next kernel
  double graph_launch_s = 0;           // of the host for a layer that a graph holds
  // Of the host: Python of a module or autograd function around its launches.
  double module_forward_s = 0, module_backward_s = 0;
  double expert_launch_s = 0;            // of the host, added to each kernel of one expert's rows
  bool grouped_in_one_kernel = false;    // products of all experts, else one after the other
  bool overlaps_shared_experts = false;  // they run beside the exchange of tokens
  int dispatch_sms = 20;                 // held by kernels that send tokens to experts
  double permute_efficiency = 0.5;       // of streaming bandwidth, rows gathered by token
  double cast_efficiency = 0.7;          // casts to fewer bits with their transposes
  double step_jitter_per_doubling = 0;   // of a step's time, per doubling of nodes beyond one

  Userbuffers userbuffers;
  TensorSoftware tensor;
  ContextSoftware context;
  StageSoftware stages;
  GradientSoftware gradients;
  SinkSoftware sinks;
  ScaledRope scaled_rope;
  LossSoftware loss;
  Fp8Software fp8;
  MoeSoftware moe;
  SoftwareChoices choices;
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
  bool offered = true;  // false: nobody can install it any more; it serves published runs
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
