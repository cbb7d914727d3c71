// SPDX-License-Identifier: Apache-2.0
// Fits the times of bringing tokens to their experts (sim/cost/dispatch_cost.h) to published
// tables: kernels that send a token once to each rank, by SMs, and NCCL's all-to-all.
//
// Least absolute deviations of log(predicted / measured), held out in five folds by shape. Tables:
// published/dispatch.csv (gpu, ranks, bytes of an element, tokens, hidden, topk, experts, sms,
// time_us) and published/exchange.csv (gpu, gpus, total_bytes, time_us).
#pragma once

#include <string>
#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/core/base/csv.h"
#include "sim/cost/dispatch_cost.h"

namespace shardwright::sim {

struct DispatchRow {
  std::string gpu;
  DispatchShape shape;
  int sms = 0;  ///< 0: NCCL's all-to-all
  double time_s = 0;
};

/// Throws Error for missing columns and bad values.
std::vector<DispatchRow> read_dispatch_table(const CsvTable& table);
std::vector<DispatchRow> read_exchange_table(const CsvTable& table);

template <typename Params>
struct DispatchFit {
  Params params;
  profiles::ErrorSummary in_sample;
  profiles::ErrorSummary held_out;
};

/// `rows` are of one GPU.
DispatchFit<profiles::DispatchParams> fit_dispatch(const std::vector<DispatchRow>& rows,
                                                   const profiles::DispatchParams& start);
DispatchFit<profiles::ExchangeParams> fit_exchange(const std::vector<DispatchRow>& rows,
                                                   const profiles::ExchangeParams& start);

}  // namespace shardwright::sim
