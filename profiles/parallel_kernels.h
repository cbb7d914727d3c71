// SPDX-License-Identifier: Apache-2.0
// What kernels that only divided plans run are cut into and reach:
// profiles/data/parallel_kernels.json, each value with its source.
#pragma once

#include <string>
#include <vector>

namespace shardwright::profiles {

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
  /// What attention with sinks reaches of fused attention with the software of these stacks; it
  /// does not skip what a window leaves out.
  double sink_attention_share = 1;
  std::vector<std::string> slow_sinks;
  /// Traffic of experts with biases where these stacks run activation and biases by kernels of
  /// their own: per element of the activation, and of the rows that FC2 puts out.
  double unfused_activation_forward_bytes = 0, unfused_activation_backward_bytes = 0;
  double unfused_bias_forward_bytes = 0, unfused_bias_backward_bytes = 0;
  int unfused_forward_kernels = 1, unfused_backward_kernels = 1;
  std::vector<std::string> unfused_biased_experts;
  /// Streams over which products of experts that are launched one by one run at once.
  double expert_streams = 1;
};

/// The shipped ones, read once. Throws Error.
const ParallelKernels& parallel_kernels();

}  // namespace shardwright::profiles
