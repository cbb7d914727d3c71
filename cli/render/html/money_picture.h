// SPDX-License-Identifier: Apache-2.0
// Days against dollars, both logarithmic: every option of a sizing as a point, the front as a line.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shardwright::cli::html {

struct OptionPoint {
  double days = 0, usd = 0;  // both positive
  std::string words{};
  bool meets = false;   // the goal
  bool front = false;   // nothing is both faster and cheaper
  bool chosen = false;  // recommended
};

/// Fewer than two points: nothing. The goal's deadline and budget are lines where they are given.
std::string money_picture(const std::vector<OptionPoint>& points,
                          std::optional<double> deadline_days, std::optional<double> budget_usd);

}  // namespace shardwright::cli::html
