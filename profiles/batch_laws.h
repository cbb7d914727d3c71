// SPDX-License-Identifier: Apache-2.0
// Published laws of the critical batch and how they judge the batches of published trainings.
//
// published/batch_laws.csv holds the laws with their sources; fitted/critical_batch.json, written
// by `python3 -m profiles.research critical-batch`, what published/whole_runs.csv says of each: how
// many batches of trainings that went well it calls beyond the critical one, and how far published
// batches scatter around it. The law that ships is the one that calls the fewest of them wasteful,
// of equal ones that with the least scatter; the others that call none wasteful are its range.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardwright::profiles {

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
