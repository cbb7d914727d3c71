// SPDX-License-Identifier: Apache-2.0
// The ledger's iteration times as a function of the step parameters.
//
// Profiles are assembled once for each kind of machine; a prediction copies one, sets the constants
// that it sees and simulates the step. The allocator is replayed only once for each row: what
// it costs in a step hardly depends on the constants. Rows without a time, suspect ones and
// rows that cannot be predicted are left out. Constants that the user sets by --set stay as set
// and are no parameters.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "profiles/step_parameters.h"
#include "sim/fit/robust_fit.h"
#include "sim/predict.h"

namespace shardwright::sim {

/// Correlation of the errors of two runs of one source; 0 would count every run alike. Assumed, and
/// chosen among several values with their errors on the same ledger in view
/// (profiles/data/published/README.md, How good the predictions are).
inline constexpr double kCorrelationInSource = 0.05;

class LedgerModel {
 public:
  /// `rows` and `parameters` must outlive it. Throws Error for bad overrides and paths.
  LedgerModel(const std::vector<profiles::LedgerRow>& rows,
              const std::vector<profiles::StepParameter>& parameters,
              const std::vector<std::string>& overrides = {}, unsigned threads = 0);

  /// The rows that take part, by their place in `rows`.
  const std::vector<std::size_t>& places() const { return places_; }
  std::size_t size() const { return places_.size(); }
  const profiles::LedgerRow& row(std::size_t i) const { return (*rows_)[places_[i]]; }
  /// The parameters that are fitted: those that a row sees and nobody set.
  const std::vector<const profiles::StepParameter*>& parameters() const { return parameters_; }
  bool sees(std::size_t row, std::size_t parameter) const;

  /// `values` of parameters(), in their order. Safe to call from several threads.
  Prediction predict(std::size_t row, const std::vector<double>& values) const;

  /// Residuals log(predicted / measured) over the logarithms of the values.
  RobustProblem problem(unsigned threads) const;
  /// Weights by Kish's design effect: runs of one source share part of their error, so n of them
  /// tell as much as n / (1 + (n - 1) kCorrelationInSource) independent ones; mean 1.
  std::vector<double> weights() const;

 private:
  struct Machine {
    profiles::Profile profile;
    std::vector<std::size_t> seen;  // places in parameters_
  };

  const std::vector<profiles::LedgerRow>* rows_;
  std::vector<std::size_t> places_;
  std::vector<const profiles::StepParameter*> parameters_;
  std::vector<Machine> machines_;
  std::vector<std::size_t> machine_of_;  // by row that takes part
  std::vector<double> pressure_s_;       // what the allocator costs in a step, likewise
};

std::vector<double> values_of(std::vector<double> logs);

}  // namespace shardwright::sim
