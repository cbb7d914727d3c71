// SPDX-License-Identifier: Apache-2.0
// What kernels that only divided plans run are cut into and reach:
// profiles/data/parallel_kernels.json, each value with its source.
#pragma once

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
};

/// The shipped ones, read once. Throws Error.
const ParallelKernels& parallel_kernels();

}  // namespace shardwright::profiles
