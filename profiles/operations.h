// SPDX-License-Identifier: Apache-2.0
// What a long run meets besides its steps (failures, restarts, checkpoints) and the constants of
// the critical batch: profiles/data/operations.json, each value with its source and date.
//
// tuner/runs/run_cost.h and tuner/runs/run_cost.h hold the formulas; a user's flags override
// the values.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

// Published laws of the critical batch and how they judge the batches of published trainings.
//
// published/batch_laws.csv holds the laws with their sources; fitted/critical_batch.json, written
// by `python3 -m profiles.research critical-batch`, what published/whole_runs.csv says of each: how
// many batches of trainings that went well it calls beyond the critical one, and how far published
// batches scatter around it. The law that ships is the one that calls the fewest of them wasteful,
// of equal ones that with the least scatter; the others that call none wasteful are its range.

struct BatchLaw {
  std::string id, words;  // "Bergsma et al. 2025"
  bool by_loss = false;   // of the expected loss; else coefficient x tokens ^ exponent
  double coefficient = 0, tokens_exponent = 0;
  // Judged by published trainings.
  std::int64_t n = 0, beyond = 0;  // trainings; those whose batch is larger than critical
  double median_share = 0;         // of the critical batch that their batches are
  double greatest_share = 0;
  double spread = 0;  // standard deviation of the logarithm of that share
};

struct CriticalBatch {
  std::string source, command, date;
  std::string law;  // the id of the one that ships
  std::vector<BatchLaw> laws;

  const BatchLaw& chosen() const;
};

/// The shipped table, profiles/data/published/batch_laws.csv, judged by nothing yet.
std::vector<BatchLaw> load_batch_laws(const std::filesystem::path& file);

/// Throws Error naming file, path, value and what is accepted.
CriticalBatch load_critical_batch(const std::filesystem::path& file);
/// The shipped one, profiles/data/fitted/critical_batch.json.
CriticalBatch load_critical_batch();
std::filesystem::path shipped_critical_batch();

}  // namespace shardwright::profiles
