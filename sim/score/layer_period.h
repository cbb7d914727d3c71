// SPDX-License-Identifier: Apache-2.0
// The steady period of backward: how long from one layer to the next, in the middle of the step.
//
// Published timelines show that period and little else, so it is what a simulated timeline can be
// held to. The table is a ledger (profiles/ledger/ledger.h) with one more column,
// backward_layer_ms.
#pragma once

#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "sim/core/base/csv.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::sim {

/// Seconds between the begins of backward of neighbouring layers, averaged over the middle half of
/// the layers in the last micro-batch; 0 for models of fewer than four layers.
double backward_layer_period_s(const Schedule& schedule, const Timeline& timeline);

struct LayerPeriod {
  profiles::LedgerRow row;
  double measured_s = 0;
  double predicted_s = 0;
};

/// Predicts every row of `table` with the profile that it describes. Throws Error as read_ledger
/// does.
std::vector<LayerPeriod> predict_layer_periods(const CsvTable& table,
                                               const std::vector<std::string>& overrides = {});

}  // namespace shardwright::sim
