// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/goodput.h"

#include <algorithm>
#include <cmath>

#include "sim/core/base/check.h"
#include "sim/core/base/portable_math.h"

namespace shardwright::tuner {

double young_interval_s(double checkpoint_s, double mtbf_s) {
  return std::sqrt(2 * checkpoint_s * mtbf_s);
}

double daly_interval_s(double checkpoint_s, double mtbf_s) {
  if (checkpoint_s >= 2 * mtbf_s) return mtbf_s;
  const double half = checkpoint_s / (2 * mtbf_s);
  return young_interval_s(checkpoint_s, mtbf_s) * (1 + std::sqrt(half) / 3 + half / 9) -
         checkpoint_s;
}

double goodput_at(double interval_s, double checkpoint_s, double restart_s, double mtbf_s) {
  const double x = interval_s / mtbf_s;
  return x / (portable_exp(restart_s / mtbf_s) * portable_expm1(x + checkpoint_s / mtbf_s));
}

Bytes checkpoint_bytes(const Model& model, const Plan& plan) {
  return count_parameters(model).total(model.layers) *
         (bytes_of(plan.master_dtype) + 2 * bytes_of(plan.moment_dtype));
}

Goodput goodput_of(const Outages& outages, std::int64_t gpus) {
  SHARDWRIGHT_CHECK(outages.mtbf_gpu_hours > 0 && outages.checkpoint_s > 0 && gpus > 0,
                    "mtbf {} h, checkpoint {} s, {} GPUs", outages.mtbf_gpu_hours,
                    outages.checkpoint_s, gpus);
  Goodput goodput;
  goodput.mtbf_s = outages.mtbf_gpu_hours * 3600 / static_cast<double>(gpus);
  goodput.checkpoint_s = outages.checkpoint_s;
  goodput.interval_s =
      std::max(outages.least_interval_s, daly_interval_s(outages.checkpoint_s, goodput.mtbf_s));
  goodput.share =
      goodput_at(goodput.interval_s, outages.checkpoint_s, outages.restart_s, goodput.mtbf_s);
  return goodput;
}

}  // namespace shardwright::tuner
