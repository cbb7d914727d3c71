// SPDX-License-Identifier: Apache-2.0
// What follows from the numbers that ranks exchanged once a step, computed where they are: on CUDA.
// The same bits as exec/step_record.cc computes on the host.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace shardwright::kernels::cuda {

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

}  // namespace shardwright::kernels::cuda
