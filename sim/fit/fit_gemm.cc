// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/fit_gemm.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/fit/held_out.h"
#include "sim/fit/minimize.h"
#include "sim/score/score_kernels.h"

namespace shardwright::sim {
namespace {

struct Sample {
  GemmRow row;
  double time_s = 0;
  double weight = 1;  // 0: counted but not fitted
};

profiles::GemmParams unpack(const std::vector<double>& x, double sustained_factor) {
  profiles::GemmParams p;
  p.t0_s = x[0];
  p.e = std::min(x[1], 1.5);
  p.k0 = x[2];
  p.w = std::min(x[3], 1.0);
  p.s = std::min(x[4], 2.0);
  p.split_k_s = x[5];
  p.throttle = x[6];
  p.throttle_s = x[7];
  p.sustained_factor = sustained_factor;
  return p;
}

profiles::GemmParams fit(const std::vector<Sample>& samples, const profiles::GpuRates& gpu,
                         double sustained_factor) {
  double weight = 0;
  for (const Sample& sample : samples) weight += sample.weight;
  const auto objective = [&](const std::vector<double>& x) {
    const profiles::GemmParams p = unpack(x, sustained_factor);
    double sum = 0;
    for (const Sample& sample : samples)
      if (sample.weight > 0)
        sum += sample.weight *
               std::abs(std::log(predicted_time_s(sample.row, p, gpu) / sample.time_s));
    // A faint pull keeps parameters that the rows do not determine where they mean something.
    const double pull = std::pow(std::log(x[7] / 1e-3), 2) + std::pow(std::log(x[5] / 2e-6), 2);
    return sum / weight + 1e-5 * pull + 1e-3 * std::max(0.0, x[3] - 1);
  };
  Minimum best;
  best.value = 1e300;
  // Hard and soft waves are two valleys; both are searched.
  for (const double wave : {0.9, 0.2}) {
    const Minimum found = minimize_positive(
        objective, {2.5e-6, 0.9, 200, wave, 0.1, 2e-6, 0.05, 1e-3}, {.max_evaluations = 2500});
    if (found.value < best.value) best = found;
  }
  for (double& x : best.at) x = rounded(x, 4);
  profiles::GemmParams p = unpack(best.at, sustained_factor);
  return p;
}

}  // namespace

GemmFit fit_gemm(const std::vector<GemmRow>& rows, const profiles::GpuRates& gpu,
                 const profiles::GemmParams& start) {
  if (rows.size() < 30)
    throw Error(fmt::format("{} GEMMs of one GPU, expected at least 30 for a fit", rows.size()));
  const std::vector<bool> contradicted = contradicted_rows(rows);
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < rows.size(); ++i)
    samples.push_back(
        {rows[i], rows[i].time_s, contradicted[i] ? 0 : (is_training_size(rows[i]) ? 1.0 : 0.25)});

  const auto fit_to = [&](const std::vector<Sample>& training) {
    return fit(training, gpu, start.sustained_factor);
  };
  const auto predict = [&](const Sample& sample, const profiles::GemmParams& p) {
    return predicted_time_s(sample.row, p, gpu);
  };
  GemmFit result;
  result.params = fit_to(samples);
  const std::vector<double> held_out =
      held_out_errors(samples, fit_to, predict, [](const Sample& sample) {
        return fold_of({sample.row.m, sample.row.n, sample.row.k});
      });

  std::vector<double> in_sample, out, out_consistent;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!is_training_size(rows[i])) continue;
    in_sample.push_back(relative_error(predict(samples[i], result.params), rows[i].time_s));
    out.push_back(held_out[i]);
    if (!contradicted[i]) out_consistent.push_back(held_out[i]);
  }
  result.in_sample = summarize_errors(in_sample);
  result.held_out = summarize_errors(out);
  result.held_out_consistent = summarize_errors(out_consistent);
  result.held_out_all_sizes = summarize_errors(held_out);
  return result;
}

}  // namespace shardwright::sim
