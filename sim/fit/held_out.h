// SPDX-License-Identifier: Apache-2.0
// Held-out errors: every row is predicted by a fit that has not seen it.
//
// Rows fall into k folds by a hash of what they measured (not of their order or time), so the split
// is the same on every machine and stays when rows are added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {

inline constexpr std::uint32_t kFolds = 5;

/// FNV-1a of the numbers, well mixed in the low bits, modulo `folds`.
std::uint32_t fold_of(std::initializer_list<std::int64_t> key, std::uint32_t folds = kFolds);

/// `fit(rows)` gives parameters, `predict(row, parameters)` seconds, `key(row)` the fold.
/// Returns |predicted / measured - 1| per row, in the order of the rows.
template <typename Row, typename Fit, typename Predict, typename Fold>
std::vector<double> held_out_errors(const std::vector<Row>& rows, Fit fit, Predict predict,
                                    Fold fold) {
  std::vector<double> errors(rows.size(), 0.0);
  for (std::uint32_t out = 0; out < kFolds; ++out) {
    std::vector<Row> training;
    for (const Row& row : rows)
      if (fold(row) != out) training.push_back(row);
    if (training.size() == rows.size() || training.empty()) continue;
    const auto params = fit(training);
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (fold(rows[i]) == out)
        errors[i] = relative_error(predict(rows[i], params), rows[i].time_s);
  }
  return errors;
}

}  // namespace shardwright::sim
