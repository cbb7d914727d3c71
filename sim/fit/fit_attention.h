// SPDX-License-Identifier: Apache-2.0
// Fits rate(s) = R s / (s + s0) of sim/cost/attention_cost.h to published attention throughput.
//
// attention.csv: gpu,kernel,pass,seq_len,head_dim,causal,tflops[,source]; pass is forward, backward
// or forward+backward (flops of both over the time of both). Only rows of head_dim 128 with a
// causal mask are fitted; backward is fitted after forward, so that combined rows can be split.
// Published tables keep the GPU full, so launch gaps and idle SMs play no part.
#pragma once

#include <string>
#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/core/base/csv.h"

namespace shardwright::sim {

enum class AttentionPass { kForward, kBackward, kBoth };

struct AttentionRow {
  std::string gpu;
  std::string kernel;
  AttentionPass pass = AttentionPass::kForward;
  double seq_len = 0;
  double flops_per_s = 0;
};

/// The rows that can be fitted. Throws Error for missing columns and bad values.
std::vector<AttentionRow> read_attention_table(const CsvTable& table);

struct AttentionFit {
  profiles::AttentionParams params;
  bool forward_fitted = false;  ///< four rows at least; else R and s0 stay as in `start`
  bool backward_fitted = false;
  profiles::ErrorSummary in_sample;
  profiles::ErrorSummary held_out;  ///< each row predicted by a fit without it
};

/// `rows` are of one GPU and kernel.
AttentionFit fit_attention(const std::vector<AttentionRow>& rows,
                           const profiles::AttentionParams& start);

}  // namespace shardwright::sim
