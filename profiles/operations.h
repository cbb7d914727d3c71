// SPDX-License-Identifier: Apache-2.0
// What a long run meets besides its steps (failures, restarts, checkpoints) and the constants of
// the critical batch: profiles/data/operations.json, each value with its source and date.
//
// tuner/runs/run_cost.h and tuner/runs/run_cost.h hold the formulas; a user's flags override
// the values.
#pragma once

#include <filesystem>

#include "profiles/fields.h"

namespace shardwright::profiles {

struct Operations {
  double mtbf_gpu_hours = 0;  // GPU hours between interruptions of a run
  double least_mtbf_gpu_hours = 0, most_mtbf_gpu_hours = 0;  // of what operators report
  double least_useful_share = 0;   // of its time, that a large training reports
  double restart_s = 0;            // from an interruption to the next step
  double gpu_bytes_per_s = 0;      // that each GPU writes of a checkpoint, all at once
  double storage_bytes_per_s = 0;  // that storage as it is sold takes of all of them together
  double stall_bytes_per_s = 0;    // that each GPU copies aside while training is held up
  double least_interval_s = 0;     // between checkpoints, as runs are operated
  // L(N, D) = ((N_c / N)^(a_N / a_D) + D_c / D)^a_D and B_crit = B* / L^(1 / a_B), in tokens.
  double parameters_c = 0, parameters_exponent = 0;
  double tokens_c = 0, tokens_exponent = 0;
  double batch_c = 0, batch_exponent = 0;
  Origins origins;  // by path: "failures.mtbf_gpu_hours"
};

void describe(FieldList& fields, Operations& operations);

/// Throws Error naming file, path, value and what is accepted.
Operations load_operations(const std::filesystem::path& file);
/// The shipped file, `data_dir()`/operations.json.
Operations load_operations();

}  // namespace shardwright::profiles
