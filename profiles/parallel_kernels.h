// SPDX-License-Identifier: Apache-2.0
// What kernels that only divided plans run are cut into and reach:
// profiles/data/parallel_kernels.json, each value with its source.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/stack.h"

namespace shardwright::profiles {

/// Software that cuts the list of a model's modules into stages of equal length.
struct ListedEnds {
  std::vector<std::string> stacks;     // by family
  std::int64_t before = 0, after = 0;  // modules that are no layers: embedding; last norm, head
};

/// Software that sums whole gradients over the data ranks, although each updates only its part.
struct WholeGradients {
  std::vector<std::string> stacks;  // by family
  double bytes = 0;                 // a parameter has in the sum
  double copied_bytes = 0;          // a parameter, into buckets of that type and back
};

/// An optimizer that takes gradients in 16 bits from a bucket and copies its part before it
/// updates.
struct CopiedGradients {
  std::vector<std::string> stacks;  // by family
  double bytes = 0;                 // an owned parameter: the part of the sums, flattened, in fp32
  double bucket_bytes = 0;
};

/// Rotary embeddings whose sines and cosines are scaled (YaRN), with software whose fused kernel
/// does not scale them.
struct ScaledRope {
  std::vector<std::string> stacks;  // by family
  KernelGroup kernels;              // per element of q and k
};

/// SMs of what userbuffers run whole beside a product of backward.
struct UserbufferBulk {
  int gather_sms = 0;         // the input of QKV or FC1, beside the gradient of the input
  int attention_sum_sms = 0;  // the gradient of the input, beside that of QKV's weight
  int mlp_sum_sms = 0;        // and of FC1's
};

/// Gathers and reductions of layers from and to buffers that NCCL knows, inside one NVLink domain.
struct RegisteredBuffers {
  std::vector<std::string> stacks;      // by family
  std::vector<std::string> strategies;  // by name
  int sms = 0;
};

/// Software and GPUs that multiply fp8 whichever dimension of an operand is last.
struct BothWaysFp8 {
  std::vector<std::string> stacks;  // by family
  std::vector<std::string> gpus;
};

/// Kernels that cast to fp8 with one scale and transpose in one pass.
struct CastTranspose {
  std::vector<std::string> stacks;  // by family
  double efficiency = 1;            // of what streams reach
};

/// Casts to fp8 with one scale a tensor where no compiler fuses them.
struct EagerCasts {
  std::vector<std::string> stacks;  // by family
  double bytes = 0;                 // an element
  int kernels = 1;
};

/// What a GPU keeps of its rates under the load of a training that many of them share. The rates of
/// gpu_cost.json hold for those that have none.
struct TrainingLoad {
  double product_share = 1;  // of matrix products, whatever their precision
  double stream_share = 1;   // of kernels that memory bounds
};

struct ParallelKernels {
  /// Userbuffers: pieces of a product whose sum is scattered meanwhile, and the SMs that scatter.
  double userbuffer_splits = 1;
  int userbuffer_sms = 0;
  /// Micro-batches whose weight gradient of the head waits for the flush of the pipeline, in
  /// software that overlaps by userbuffers.
  int deferred_head_gradients = 0;
  /// What dispatchers that leave copies to memory engines reach, of NCCL's all-to-all.
  double hybrid_link_share = 1;
  /// What products with block scales of 1 x 32 reach, of those with one scale a tensor.
  double mxfp8_product_share = 1;
  /// What casts to MXFP8 reach of kernels that stream.
  double mxfp8_cast_efficiency = 1;
  /// What attention with sinks reaches of fused attention with the software of these stacks; it
  /// does not skip what a window leaves out.
  double sink_attention_share = 1;
  std::vector<std::string> slow_sinks;
  /// The same of attention's backward in fp8, which recipes of models with sinks turn on.
  double fp8_sink_backward_share = 1;
  std::vector<std::string> fp8_sinks;
  /// What it moves before: bytes an element of queries, keys and values, or of the gradient.
  double fp8_attention_input_bytes = 0;
  std::vector<std::string> fp8_attention_inputs;
  /// Bytes a second that one SM's programs of the fused loss go through, on GPUs of which
  /// architecture that is measured, and who runs it.
  double fused_loss_sm_bytes_per_s = 0;
  std::string fused_loss_architecture;
  std::vector<std::string> fused_losses;
  /// Traffic of experts with biases where these stacks run activation and biases by kernels of
  /// their own: per element of the activation, and of the rows that FC2 puts out.
  double unfused_activation_forward_bytes = 0, unfused_activation_backward_bytes = 0;
  double unfused_bias_forward_bytes = 0, unfused_bias_backward_bytes = 0;
  int unfused_forward_kernels = 1, unfused_backward_kernels = 1;
  std::vector<std::string> unfused_biased_experts;
  /// Experts in MXFP8 whose activation and casts are done by the products themselves, where a graph
  /// holds the whole step, which needs them so.
  std::vector<std::string> fused_experts;
  /// By family: weights of rows, in fp32, go to the experts by an exchange of their own.
  std::vector<std::string> sends_weights;
  /// Streams over which products of experts that are launched one by one run at once.
  double expert_streams = 1;
  ListedEnds listed_ends;
  WholeGradients whole_gradients;
  CopiedGradients copied_gradients;
  /// By family: stages get layers by what blocks cost, the head among them.
  std::vector<std::string> stages_by_cost;
  /// By family: inputs of column-parallel products stay gathered for backward.
  std::vector<std::string> keeps_gathered_inputs;
  /// By family: the ring of context parallelism goes round by one all-gather, sums in fp32.
  std::vector<std::string> gathered_ring;
  UserbufferBulk userbuffer_bulk;
  RegisteredBuffers registered_buffers;
  BothWaysFp8 both_ways_fp8;
  CastTranspose cast_transpose;
  /// By family: a compiler that waits where a collective is traced leaves nothing beside the ring.
  std::vector<std::string> waits_for_ring;
  /// By family: collectives of tensor ranks concatenate along the first dimension, so parts of
  /// more than one sequence are copied into their places.
  std::vector<std::string> copies_parts_of_sequences;
  /// By family: async tensor parallelism is a pattern of a product beside its collective.
  std::vector<std::string> matches_async_products;
  /// By family: gradients of one input are added up by one kernel.
  std::vector<std::string> adds_gradients_at_once;
  /// What products with a scale for every row reach, of those with one scale a tensor.
  double rowwise_product_share = 1;
  /// By family: bytes a logit at the fullest of a loss whose parts of the vocabulary are put
  /// together by kernels of their own, where logits are cast to fp32.
  std::vector<std::string> separate_parts_of_loss;
  double separate_loss_bytes = 0;
  EagerCasts eager_casts;
  ScaledRope scaled_rope;
  std::map<std::string, TrainingLoad, std::less<>> training_loads;  // by GPU
};

/// Of lists by family, and of those that name editions.
bool among(const std::vector<std::string>& stacks, const Stack& stack);
bool among_editions(const std::vector<std::string>& stacks, const Stack& stack);
/// Products in fp8 want a transposed copy of operands whose inner dimension is not the last, as all
/// do but those of the GPUs that multiply both ways and of software that uses it.
bool transposes_fp8(const Stack& stack, std::string_view gpu);

/// The shipped ones, read once. Throws Error.
const ParallelKernels& parallel_kernels();
/// Of the GPU of that name.
TrainingLoad training_load(std::string_view gpu);

}  // namespace shardwright::profiles
