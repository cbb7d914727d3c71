// SPDX-License-Identifier: Apache-2.0
// `predict --tokens`: the whole run of a plan, in days and dollars, beside its ideal steps.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "profiles/prices/energy.h"
#include "profiles/prices/price.h"
#include "tuner/runs/run_cost.h"

namespace shardwright::cli {

struct WholeRunAnswer {
  tuner::RunConditions conditions;
  tuner::RunCost cost;
  profiles::Price price;  // on demand
  double tokens_per_step = 0;
  profiles::Energy energy;
  std::string gpu;  // whose power it is
};

std::string whole_run_text(const WholeRunAnswer& answer, const Terminal& out);
nlohmann::ordered_json whole_run_json(const WholeRunAnswer& answer);

}  // namespace shardwright::cli
