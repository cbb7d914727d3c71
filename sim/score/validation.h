// SPDX-License-Identifier: Apache-2.0
// Scores predictions against the ledger of published runs: what `validate` prints.
//
// Every row is predicted from its own columns by the profile that its own columns describe; nothing
// is fitted here. Errors are predicted / measured - 1. Memory is compared with the framework's
// counter that the row names. A row is skipped only when it cannot be predicted, and then says why;
// skipped rows are counted. Rows are independent, so they run on all cores; the result does not
// depend on how many there are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "sim/predict.h"

namespace shardwright::sim {

struct ValidatedRow {
  profiles::LedgerRow row;
  std::string skipped;  // why there is no prediction; empty when there is one
  Prediction prediction;
  double predicted_peak_gib = 0;  // of the counter that the row names; allocated when it names none
  std::optional<double> time_error;    // signed, as a fraction; none when not measured
  std::optional<double> memory_error;  // likewise
  bool outcome_right = true;  // an oom row is right when the plan does not fit, others when it does
  bool inside_interval = true;         // of a measured time
  bool inside_memory_interval = true;  // of a measured peak
};

/// A constant that only runs of one source determine, so that others see it only as a prior.
struct SourceConstant {
  std::string name, source;
  double value = 0, prior = 0;
  bool applies_to_source_only = false;
};

/// |predicted / measured - 1| over some rows, as fractions; all zero when n is. The median is an
/// error that occurs: the lower one of two in the middle.
struct ErrorScore {
  std::int64_t n = 0;
  double mape = 0, median = 0, worst = 0;
};

/// Of |predicted / measured - 1|.
ErrorScore score_errors(const std::vector<double>& errors);

struct ValidationSummary {
  ErrorScore time, memory;     // of rows that are not suspect
  ErrorScore suspect_time;     // of those that are; their peaks are in no score
  std::int64_t predicted = 0;  // rows, hence outcomes compared
  std::int64_t wrong_outcomes = 0;
  std::int64_t inside_interval = 0;         // of time.n
  std::int64_t inside_memory_interval = 0;  // of memory.n
  std::int64_t skipped = 0;
};

/// Two rows that differ in nothing but the strategy.
struct SpeedupPair {
  std::size_t yafsdp = 0, fsdp1 = 0;   // places in Validation::rows
  double measured = 0, predicted = 0;  // 1 - yafsdp time / fsdp1 time
};

struct Validation {
  std::vector<ValidatedRow> rows;  // in the order of the ledger
  ValidationSummary all;
  std::map<std::string, ValidationSummary> by_source, by_gpu;
  std::map<std::string, std::int64_t> skipped_because;
  std::vector<SpeedupPair> speedups;
  std::vector<SourceConstant> source_constants;
};

struct ValidationOptions {
  std::vector<std::string> overrides;          // as given to --set, for the profile of every row
  unsigned threads = 0;                        // 0: all cores
  std::function<void(std::int64_t)> progress;  // rows done so far; called by one thread at a time
};

/// Throws Error only for bad overrides.
Validation validate(const std::vector<profiles::LedgerRow>& rows,
                    const ValidationOptions& options = {});

}  // namespace shardwright::sim
