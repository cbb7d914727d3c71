// SPDX-License-Identifier: Apache-2.0
// Which values of a group its rows determine, and how much uncertainty the others leave about them.
//
// The information matrix of the values is looked at in units of what is believed beforehand. Its
// weakest direction is a combination of values that the rows hardly tell; as long as they leave it
// wider than half of the belief, one value with a good part in it is frozen at what the profile
// has: the one of the highest rank. A value that is frozen is not known, though: where rows see it,
// its uncertainty moves the free ones.
#pragma once

#include <Eigen/Dense>
#include <cstddef>
#include <optional>
#include <vector>

#include "sim/calibrate/group_problem.h"
#include "sim/calibrate/parameters.h"

namespace shardwright::sim {

/// Columns of a matrix, in this order.
Eigen::MatrixXd columns(const Eigen::MatrixXd& matrix, const Indices& which);

/// Freezes values until the rows determine every direction of those that are left.
/// `slopes`: d residual / d value over the rows' noise, one column for each value.
void freeze_undetermined(const Eigen::MatrixXd& slopes, const std::vector<Adjustable>& values,
                         Indices& free);

/// Frozen values that the rows see and that leave uncertainty about the free ones.
Indices uncertain(const Indices& free, const std::vector<bool>& seen,
                  const std::vector<Adjustable>& values);

/// Covariance of the free values: `own` of the fit, and by uncertainty about the frozen ones.
/// `scale`: noise of the rows; `slopes` of all values.
Eigen::MatrixXd total_covariance(const Eigen::MatrixXd& own, const Eigen::VectorXd& scale,
                                 const Eigen::MatrixXd& slopes, const Indices& free,
                                 const Indices& frozen, const std::vector<Adjustable>& values);

/// The place in `free` of the value whose uncertainty is the largest part of what is believed;
/// none: all are within. A value of rank 0 carries the level of its rows, so it is judged by them
/// alone
/// (`own`): what frozen values leave open about it widens its interval, but the rows are not
/// predicted wrong for that.
std::optional<std::size_t> too_wide(const Eigen::MatrixXd& covariance, const Eigen::MatrixXd& own,
                                    const Indices& free, const std::vector<Adjustable>& values);

}  // namespace shardwright::sim
