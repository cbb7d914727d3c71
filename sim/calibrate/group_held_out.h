// SPDX-License-Identifier: Apache-2.0
// Errors of a group's rows in fits that have not seen them.
#pragma once

#include <Eigen/Dense>
#include <vector>

#include "sim/calibrate/group_problem.h"
#include "sim/calibrate/lad.h"

namespace shardwright::sim {

/// log(predicted / measured) of every target by a fit of `free` to the others: five folds by what
/// the rows are, or each row by itself where there are few. NaN for rows that alone determine a
/// value: nothing can be held against them. `slopes` (standardized: over the rows' noise) are those
/// of all values at the full fit.
std::vector<double> held_out(GroupProblem& problem, const Indices& free, const LadFit& full,
                             const Eigen::MatrixXd& slopes, const Eigen::MatrixXd& standardized);

}  // namespace shardwright::sim
