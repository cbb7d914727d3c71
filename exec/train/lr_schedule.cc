// SPDX-License-Identifier: Apache-2.0
#include "exec/train/lr_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

constexpr std::pair<LrShape, std::string_view> kShapeNames[] = {{LrShape::kConstant, "constant"},
                                                                {LrShape::kCosine, "cosine"},
                                                                {LrShape::kLinear, "linear"},
                                                                {LrShape::kWsd, "wsd"}};

}  // namespace

std::string_view name_of(LrShape shape) {
  for (const auto& [value, name] : kShapeNames) {
    if (value == shape) return name;
  }
  return "unknown";
}

std::optional<LrShape> lr_shape_from(std::string_view name) {
  for (const auto& [value, known] : kShapeNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

double learning_rate(const LrSchedule& s, std::int64_t step) {
  const std::int64_t at = std::clamp<std::int64_t>(step, 1, s.total_steps);
  if (at < s.warmup_steps) {
    return s.peak * static_cast<double>(at) / static_cast<double>(s.warmup_steps);
  }
  if (s.shape == LrShape::kConstant) return s.peak;

  const auto total = static_cast<double>(s.total_steps);
  double start = static_cast<double>(s.warmup_steps);
  if (s.shape == LrShape::kWsd)
    start = std::max(start, total - std::round(total * s.decay_fraction));
  const double steps_down = total - start;
  const double progress =
      steps_down > 0 ? std::max(0.0, (static_cast<double>(at) - start) / steps_down) : 0.0;
  const double left = s.shape == LrShape::kCosine
                          ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress))
                          : 1.0 - progress;
  return s.peak * (s.final_fraction + (1.0 - s.final_fraction) * left);
}

void check_lr_schedule(const LrSchedule& s) {
  if (!(s.peak > 0) || !std::isfinite(s.peak)) {
    throw Error(fmt::format("--lr is {}, expected a number above 0", s.peak));
  }
  if (s.total_steps < 1) {
    throw Error(fmt::format("--steps is {}, expected at least 1", s.total_steps));
  }
  if (s.warmup_steps < 0 || s.warmup_steps > s.total_steps) {
    throw Error(fmt::format("--warmup is {}, expected 0 to {}, the number of steps", s.warmup_steps,
                            s.total_steps));
  }
  if (!(s.final_fraction >= 0 && s.final_fraction <= 1)) {
    throw Error(fmt::format("--final-lr-fraction is {}, expected 0 to 1", s.final_fraction));
  }
  if (!(s.decay_fraction >= 0 && s.decay_fraction <= 1)) {
    throw Error(fmt::format("--decay-fraction is {}, expected 0 to 1", s.decay_fraction));
  }
}

}  // namespace shardwright::exec
