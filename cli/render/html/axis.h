// SPDX-License-Identifier: Apache-2.0
// The frame that all drawings of a report share: a column of labels at the left, the plot beside
// it.
#pragma once

#include <string>
#include <vector>

namespace shardwright::cli::html {

inline constexpr double kPictureWidth = 980;
inline constexpr double kPlotLeft = 104;
inline constexpr double kPlotWidth = 866;

/// Ticks and their labels under a plot of `seconds`, at `y`.
std::string time_axis(double seconds, double y);

/// Drawings under each other share a scale, so that their lengths compare, unless the shortest
/// would vanish beside the longest; then each has its own.
double shared_length(const std::vector<double>& lengths, double own);

}  // namespace shardwright::cli::html
