// SPDX-License-Identifier: Apache-2.0
#include "profiles/prices/power_limit.h"

#include <fmt/core.h>

#include <cmath>

#include "sim/core/base/error.h"
#include "sim/core/base/portable_math.h"

namespace shardwright::profiles {
namespace {

/// Of board power, below which no driver lets the limit be set.
constexpr double kLeastLimit = 0.25;

}  // namespace

double clock_share(const Energy& energy, const std::string& gpu, double limit_watts) {
  const auto at = energy.watts.find(gpu);
  if (at == energy.watts.end()) {
    throw Error(fmt::format("--power-limit-watts is {:g}, but the board power of {} is not known",
                            limit_watts, gpu));
  }
  const double board = at->second;
  const double least = kLeastLimit * board;
  if (!(limit_watts >= least) || !(limit_watts <= board)) {
    throw Error(
        fmt::format("--power-limit-watts is {:g}, expected {:g} to {:g}, the board power "
                    "of {}",
                    limit_watts, least, board, gpu));
  }
  const double standing = energy.standing_share * board;
  const double dynamic = (limit_watts - standing) / (board - standing);
  return portable_exp(portable_log(dynamic) / energy.clock_exponent);
}

std::vector<std::string> power_limit_overrides(const Profile& profile, const Energy& energy,
                                               double limit_watts) {
  const double clocks = clock_share(energy, profile.cluster.gpu.id, limit_watts);
  std::vector<std::string> overrides;
  const auto lower = [&](const std::string& path, double value) {
    overrides.push_back(fmt::format("{}={}", path, value * clocks));
  };
  lower("cost.gemm.sustained_factor", profile.cost.gemm.values.sustained_factor);
  for (const auto& [kernel, attention] : profile.cost.attention) {
    lower(fmt::format("cost.attention.{}.forward_flops", kernel), attention.values.forward_flops);
    lower(fmt::format("cost.attention.{}.backward_flops", kernel), attention.values.backward_flops);
  }
  return overrides;
}

}  // namespace shardwright::profiles
