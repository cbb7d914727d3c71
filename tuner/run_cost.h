// SPDX-License-Identifier: Apache-2.0
// What a whole run takes in days and dollars: its ideal steps, and beside them the run as published
// trainings went.
//
//   ideal days  = tokens / tokens per second of the predicted step
//   whole days  = ideal days x tokens factor x production factor x failures at this scale
//
// The production factor (profiles/production.h) holds what published runs lost to failures,
// evaluation, restarts, stragglers, checkpoints and data, on a usual number of GPUs.
// More GPUs fail more often: the factor is moved by goodput (goodput.h) on that number
// over goodput on these. The tokens factor is (1 + B / B_crit) over the same at the usual batch
// (critical_batch.h), never below 1: steps that outgrow the usual batch need more tokens for the
// same loss. The interval holds the step's interval and the factor's; that of dollars also what
// offers of the same kind ask elsewhere, in quadrature of logarithms, end by end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "profiles/price.h"
#include "profiles/production.h"
#include "sim/core/model.h"
#include "sim/predict.h"
#include "tuner/goodput.h"

namespace shardwright::tuner {

/// What a run meets besides its steps.
struct RunConditions {
  double tokens = 0;
  double critical_tokens = 0;  // of a step; 0: not asked
  double usual_tokens = 0;     // of a step, what the batch is compared with
  profiles::Production production;
  double mtbf_gpu_hours = 0, restart_s = 0;
  /// Least and most of it that operators report; zeros where it is known.
  std::array<double, 2> mtbf_range{};
  /// Hours that a node runs before its provider takes it away; 0: it does not (spot does).
  double preemption_node_hours = 0;
  double gpu_bytes_per_s = 0;          // of a checkpoint
  std::optional<double> checkpoint_s;  // instead
};

struct RunCost {
  double ideal_days = 0;
  double days = 0;
  std::array<double, 2> days_interval{};
  double gpu_hours = 0;
  std::optional<double> ideal_usd, usd;  // none: price unknown
  std::optional<std::array<double, 2>> usd_interval;
  double tokens_factor = 1;
  double scale_factor = 1;  // failures on these GPUs over those on a usual number
  profiles::ProductionFactor production;
  Goodput goodput;
  double whole_mfu = 0;  // 6 N tokens over GPU hours and 16-bit peak
};

/// Mean GPU hours between interruptions of a job on nodes of `gpus_per_node`: by failures, and by
/// the provider where that takes nodes away. Rates of independent interruptions add.
double interrupted_every_gpu_hours(const RunConditions& conditions, std::int64_t gpus_per_node);

/// Tokens, the critical batch and what is known of published runs and of failures: shipped data.
RunConditions usual_conditions(const Model& model, double tokens, std::int64_t seq_len);

/// Tokens of a step when nobody says: the largest power of two of sequences below the critical
/// batch.
double usual_batch_tokens(double critical_tokens, std::int64_t seq_len);

/// (1 + batch / critical) / (1 + usual / critical), at least 1.
double tokens_factor(double tokens_per_step, double usual, double critical);

RunCost run_cost(const Model& model, const sim::Prediction& prediction, double peak_flops,
                 const RunConditions& conditions, const profiles::Price& price,
                 std::int64_t gpus_per_node = 1);

}  // namespace shardwright::tuner
