// SPDX-License-Identifier: Apache-2.0
// Runs that gpu_check timed, beside what is predicted for them today.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "sim/score/kernel_scores.h"

namespace shardwright::cli {

std::string gpu_results_text(const sim::GpuResults& results, const Terminal& out);
/// {"gpu", "when", "cluster", "time", "after_measure", "memory", "runs": [...], "skipped": [...]}.
nlohmann::ordered_json gpu_results_json(const sim::GpuResults& results);

}  // namespace shardwright::cli
