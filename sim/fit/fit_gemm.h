// SPDX-License-Identifier: Apache-2.0
// Fits the tile and wave model of sim/cost/gemm_cost.h to measured GEMMs of one GPU.
//
// Minimizes the mean |log(predicted / measured)|: least absolute deviations shrug off disturbed
// rows, logs make a microsecond kernel count like a second one. Rows that the table contradicts
// (kernel_tables.h, judged on the whole table) are not fitted to, but count in the errors. Products
// of training size weigh four times the rest.
#pragma once

#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/score/kernel_tables.h"

namespace shardwright::sim {

struct GemmFit {
  profiles::GemmParams params;                 ///< sustained_factor as in `start`
  profiles::ErrorSummary in_sample;            ///< training-size products
  profiles::ErrorSummary held_out;             ///< the same, each predicted by a fit without it
  profiles::ErrorSummary held_out_consistent;  ///< without contradicted rows
  profiles::ErrorSummary held_out_all_sizes;
};

/// `rows` are of one GPU; at least 30 of them. `start` gives what is not fitted.
GemmFit fit_gemm(const std::vector<GemmRow>& rows, const profiles::GpuRates& gpu,
                 const profiles::GemmParams& start);

}  // namespace shardwright::sim
