// SPDX-License-Identifier: Apache-2.0
// Whether this program trains by a plan itself, with the command, or why it does not; and what this
// build and machine lack for it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/job.h"

namespace shardwright::cli {

struct RunsHere {
  std::string command;       // empty where it does not
  std::string why_not;       // in words; empty where it does
  std::string why_not_here;  // likewise, of a plan that it trains by
  bool possible() const { return why_not.empty(); }
};
RunsHere runs_here(const sim::Job& inputs, const Plan& plan);

/// {"possible", "command", "why_not", "why_not_here"}; null stands for what is empty.
nlohmann::ordered_json runs_here_json(const RunsHere& here);

}  // namespace shardwright::cli
