// SPDX-License-Identifier: Apache-2.0
// AdamW on the parts of parameters that a rank owns, on CUDA (kernels/arguments.h has the formula).
//
// The operations, their roundings and the random bits are those of kernels/host/adamw.h on
// processors with fused multiply-add: equal inputs give equal bits there and here, however
// parameters are sharded.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/cuda/stream.h"

namespace shardwright::kernels::cuda {

/// Elements [offset, offset + count) of the arrays: parameters of the model with the indices that
/// ElementIndices tells.
struct AdamWSegment {
  std::int64_t offset = 0;
  std::int64_t count = 0;
  std::uint64_t first_index = 0;
  bool decays = false;
  std::int64_t row_begin = 0;
  std::int64_t row_length = 0;
  std::int64_t row_stride = 0;

  ElementIndices indices() const { return {first_index, row_begin, row_length, row_stride}; }
};

/// One step. Gradients are multiplied by *grad_scale, which is in device memory; nothing changes
/// where that is not finite, and options.grad_scale is not used. options.weight_decay is for
/// segments that decay. P, G and M are float or BFloat16; bf16 moments and parameters are rounded
/// stochastically. The segments are copied.
template <class P, class G, class M>
void adamw(cudaStream_t stream, const AdamW& options, const double* grad_scale,
           std::span<const AdamWSegment> segments, const G* gradient, P* parameter, M* m, M* v);

}  // namespace shardwright::kernels::cuda
