// SPDX-License-Identifier: Apache-2.0
// Why a step takes as long as it does, and what one change would buy.
//
// Each part of the step is told apart by what bounds it (step_parts.h). The changes are tried, not
// guessed: each alters one thing about the plan, the software or the hardware and predicts again.
// They are ranked by tokens per second, because some of them change the batch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/explain/step_parts.h"
#include "sim/predict.h"

namespace shardwright::sim {

enum class ChangeKind : std::uint8_t { kPlan, kSoftware, kHardware };
std::string_view name_of(ChangeKind kind);

struct Change {
  ChangeKind kind = ChangeKind::kPlan;
  std::string what;  // "twice the NIC bandwidth"
  std::string also;  // a consequence that a user should know: "doubles the batch"
  double iteration_s = 0;
  double gain = 0;        // tokens per second against the plan as it is, minus 1
  Bytes total_bytes = 0;  // of memory
  bool fits = false;
};

struct Explanation {
  StepParts parts;
  Prediction base;
  std::vector<Change> changes;  // best first
};

/// Predicts `plan` and its changes with the predictor's model and profile. Changes that the plan
/// does not admit are left out. Throws Error when the plan itself cannot be predicted.
Explanation explain(Predictor& predictor, const Plan& plan);

// What it costs that tokens do not choose experts equally often: the same plan with forced balance,
// held beside.

/// Of a prediction of `predictor`; none of models without experts, of experts with a capacity and
/// of plans that force balance.
std::optional<RoutingPrice> routing_price(Predictor& predictor, const Prediction& prediction);

}  // namespace shardwright::sim
