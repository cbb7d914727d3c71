// SPDX-License-Identifier: Apache-2.0
// The end of a step on CUDA: the exact sum of squares of gradients, what follows from the numbers
// that ranks exchange, and AdamW on the parts of parameters that a rank owns (kernels/arguments.h
// has the formula). Equal inputs give equal bits here and on the host (kernels/host/optimizer.h on
// processors with fused multiply-add, exec/device.cc), however parameters are sharded.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/arguments.h"
#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// Adds the sum of squares of x to the ExactSum::kWords words, which are in device memory. Only
/// integers are added, so the sum is exact and the same in any order; a call adds less than 2^43 to
/// a word, which leaves room for a million calls (ExactSum::from_words carries).
template <class T>
void sum_of_squares(cudaStream_t stream, const T* x, std::int64_t count, std::int64_t* words);

/// As exec::StepRecords: one record a rank, ExactSum::kWords words of the sum of squares, then
/// (loss as double, tokens as int64) of every micro-batch.
struct StepRecordsView {
  const std::int64_t* data = nullptr;
  std::int64_t words = 0;  // of a record
  std::int64_t world_ranks = 1;
  std::int64_t micro_steps = 1;
};

/// As the head of exec::StepTotals.
struct StepTotalsView {
  double loss;
  std::int64_t tokens;
  double gradient_norm;
  double scale;
};

/// Writes *totals, in device memory. max_norm and skip_above as in exec::ClipOptions.
void step_totals(cudaStream_t stream, const StepRecordsView& records, double max_norm,
                 double skip_above, StepTotalsView* totals);

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
