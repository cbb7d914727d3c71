// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/group_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/core/base/parse_number.h"

namespace shardwright::sim {

GroupProblem::GroupProblem(EditableProfile& profile, const std::vector<Adjustable>& values,
                           const std::vector<Target>& targets, const Sharing& sharing)
    : profile_(profile),
      values_(values),
      targets_(targets),
      sharing_(sharing),
      all_rows_(targets.size()),
      all_values_(values.size()) {
  for (const Adjustable& value : values) {
    numbers_.push_back(profile.find(value.path));
    base_.push_back(*numbers_.back());
  }
  std::iota(all_rows_.begin(), all_rows_.end(), std::size_t{0});
  std::iota(all_values_.begin(), all_values_.end(), std::size_t{0});
}

LadProblem GroupProblem::problem(const Indices& free, const Indices& rows) {
  LadProblem problem;
  for (const std::size_t j : free) {
    const Adjustable& value = values_[j];
    problem.parameters.push_back(
        {std::log(value.lower), std::log(value.upper), std::log(base_[j]), value.spread});
  }
  for (const std::size_t i : rows) problem.noise.push_back(targets_[i].noise);
  problem.residuals = [this, free, rows](const std::vector<double>& x) {
    return residuals(free, x, rows);
  };
  return problem;
}

std::vector<double> GroupProblem::start(const Indices& free) const {
  std::vector<double> x;
  for (const std::size_t j : free) x.push_back(std::log(base_[j]));
  return x;
}

void GroupProblem::apply(const Indices& free, const std::vector<double>& x) {
  for (std::size_t j = 0; j < numbers_.size(); ++j) *numbers_[j] = base_[j];
  for (std::size_t j = 0; j < free.size(); ++j) {
    const Adjustable& value = values_[free[j]];
    *numbers_[free[j]] = std::clamp(rounded(std::exp(x[j]), 7), value.lower, value.upper);
  }
}

std::vector<double> GroupProblem::residuals(const Indices& free, const std::vector<double>& x,
                                            const Indices& rows) {
  for (std::size_t j = 0; j < free.size(); ++j) *numbers_[free[j]] = std::exp(x[j]);
  std::vector<double> result = log_errors(profile_.profile(), targets_, sharing_, rows);
  for (const std::size_t j : free) *numbers_[j] = base_[j];
  return result;
}

}  // namespace shardwright::sim
