// SPDX-License-Identifier: Apache-2.0
// The residuals of a group's targets as a function of some of its values: what is handed to the
// fitter.
//
// A GroupProblem moves the values of the profile that it was given and puts them back after each
// evaluation; only apply() leaves them moved. So it is not const while it predicts, and two of them
// must not share a profile at once.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/calibrate/lad.h"
#include "sim/calibrate/parameters.h"
#include "sim/calibrate/targets.h"

namespace shardwright::sim {

using Indices = std::vector<std::size_t>;

class GroupProblem {
 public:
  /// All outlive the problem.
  GroupProblem(EditableProfile& profile, const std::vector<Adjustable>& values,
               const std::vector<Target>& targets, const Sharing& sharing);

  /// Residuals of `rows` as a function of the values of `free`. Lives as long as this.
  LadProblem problem(const Indices& free, const Indices& rows);
  /// Logarithms of what the profile had.
  std::vector<double> start(const Indices& free) const;
  /// Leaves the profile with the values of `free` at x, the others as they were.
  void apply(const Indices& free, const std::vector<double>& x);

  const Indices& all_rows() const { return all_rows_; }
  const Indices& all_values() const { return all_values_; }
  const std::vector<Adjustable>& values() const { return values_; }
  const std::vector<Target>& targets() const { return targets_; }
  double base(std::size_t j) const { return base_[j]; }

 private:
  std::vector<double> residuals(const Indices& free, const std::vector<double>& x,
                                const Indices& rows);

  EditableProfile& profile_;
  const std::vector<Adjustable>& values_;
  const std::vector<Target>& targets_;
  const Sharing& sharing_;
  std::vector<double*> numbers_;  // of the profile, by value
  std::vector<double> base_;
  Indices all_rows_, all_values_;
};

}  // namespace shardwright::sim
