// SPDX-License-Identifier: Apache-2.0
// The learning rate of every step: warm-up, then constant, cosine, linear or WSD.
//
// A pure function of the step, so nothing of it is saved in a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardwright::exec {

enum class LrShape : std::uint8_t {
  kConstant,
  kCosine,  // half a cosine from the peak to the final rate
  kLinear,  // a straight line from the peak to the final rate
  kWsd      // warm-up, stable, decay: the peak, then a straight line in the last share of the steps
};

std::string_view name_of(LrShape shape);  // "constant", "cosine", "linear", "wsd"
std::optional<LrShape> lr_shape_from(std::string_view name);

struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double peak = 3e-4;
  std::int64_t total_steps = 1;
  std::int64_t warmup_steps = 0;
  double final_fraction = 0.1;  // of the peak, reached at the last step; constant ignores it
  double decay_fraction = 0.2;  // wsd: share of all steps in which the rate falls
};

/// The rate of step 1, 2, ..., total_steps. Warm-up rises as peak * step / warmup_steps, so that no
/// step is wasted at rate 0; after the last step the rate stays what it was there.
double learning_rate(const LrSchedule& schedule, std::int64_t step);

/// Throws Error naming the flag of the first value that is out of range.
void check_lr_schedule(const LrSchedule& schedule);

}  // namespace shardwright::exec
