// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/size_refusals.h"

#include <fmt/core.h>

#include "sim/core/units.h"

namespace shardwright::tuner {

std::string gib(double bytes) {
  return fmt::format("{:.1f} GiB", bytes / kGiB);
}

Bytes least_state_bytes(const Model& model, const SizingJob& job, std::int64_t gpus) {
  if (job.fixed.offload != Offload::kNone) return 0;
  Plan plan;
  plan.master_dtype =
      job.fixed.allow_bf16_master ? DType::kBf16 : job.fixed.master_dtype.value_or(DType::kFp32);
  plan.moment_dtype =
      job.fixed.allow_bf16_moments ? DType::kBf16 : job.fixed.moment_dtype.value_or(DType::kFp32);
  return checkpoint_bytes(model, plan) / gpus;
}

std::string why_nothing_fits(const std::optional<Overshoot>& nearest) {
  if (!nearest) return "no plan was tried before the interruption";
  if (nearest->excess_bytes <= 0)
    return "the nearest plan fits only by emptying the allocator's cache in every step";
  return fmt::format("the nearest plan takes {} more than it may of a GPU",
                     gib(static_cast<double>(nearest->excess_bytes)));
}

std::string no_progress(const Goodput& goodput) {
  return fmt::format(
      "an interruption every {:.3g} hours, with {:.3g} s for a checkpoint, leaves less than "
      "{:.0f} % of the time useful",
      goodput.mtbf_s / 3600, goodput.checkpoint_s, 100 * kLeastUseful);
}

}  // namespace shardwright::tuner
