// SPDX-License-Identifier: Apache-2.0
// The published table, predicted: what the project promises of it, and what it last was.
//
// Two criteria judge the predictions of the shipped ledger. The promises are bounds that the
// project stands for (README, How good it is): errors of the YaFSDP table, its speedups, outcomes.
// They stand in the code and only tighten. The record, published_errors.json, holds the errors of
// every source, for each stack and GPU, as they were when somebody last looked: mean, worst and
// signed mean of the iteration times. A change of a constant that no promise notices moves a signed
// mean. An intended change is recorded by scripts/record_published_errors and shows in review as a
// diff of errors.
//
// A mutation changes one number of the profiles in memory, so that a test can ask whether the
// criteria would notice (mutation_test.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "profiles/profile.h"

namespace shardwright::guard {

/// Errors predicted / measured - 1 of iteration times, as fractions.
struct Errors {
  std::int64_t n = 0;
  double mean = 0;   // of absolute values
  double worst = 0;  // likewise
  double signed_mean = 0;
};

struct PublishedTable {
  std::vector<double> predicted_s;         // by row; 0 when skipped
  std::vector<bool> fits;                  // likewise
  std::map<std::string, Errors> by_group;  // "SOURCE, STACK on GPU"
  Errors yafsdp, all;                      // the YaFSDP table; everything
  std::int64_t skipped = 0;
  std::int64_t wrong_outcomes = 0;
  std::int64_t speedups = 0, speedups_within_3_points = 0;
};

/// Changes the profile that a row is predicted with, and says whether it did.
using Mutation = std::function<bool(const profiles::LedgerRow&, profiles::Profile&)>;

/// The shipped ledger, and for each row the profile that its own columns describe.
class Ledger {
 public:
  Ledger();
  const std::vector<profiles::LedgerRow>& rows() const { return rows_; }
  const profiles::Profile& profile(std::size_t row) const { return profiles_.at(row); }

  const PublishedTable& table() const { return table_; }
  /// Only rows that the mutation changes are predicted again.
  PublishedTable mutated(const Mutation& mutation) const;

 private:
  void predict(std::size_t row, const profiles::Profile& profile, PublishedTable& table) const;
  /// Errors, outcomes and speedups from predicted_s and fits.
  void score(PublishedTable& table) const;

  std::vector<profiles::LedgerRow> rows_;
  std::vector<profiles::Profile> profiles_;
  PublishedTable table_;
};

/// Sentences, one for each promise that is broken.
std::vector<std::string> broken_promises(const PublishedTable& table);

/// Sentences, one for each figure that is not as recorded.
std::vector<std::string> departures_from_record(const PublishedTable& table);

}  // namespace shardwright::guard
