// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/fit_collectives.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/fit/held_out.h"
#include "sim/fit/minimize.h"
#include "sim/score/score_kernels.h"

namespace shardwright::sim {
namespace {

using profiles::CollectiveParams;

/// The fitted members, in the order of the vectors below.
std::vector<double*> fitted(CollectiveParams& p) {
  std::vector<double*> members{&p.ll.base_s,
                               &p.ll.hop_s,
                               &p.ll_channel_bytes_per_s,
                               &p.ll_spread_s,
                               &p.ll.bytes_per_s,
                               &p.ll128.base_s,
                               &p.ll128.hop_s,
                               &p.ll128.bytes_per_s,
                               &p.simple.base_s,
                               &p.simple.hop_s,
                               &p.simple.bytes_per_s,
                               &p.simple_sqrt_s,
                               &p.gather_copy_bytes_per_s,
                               &p.reduce_copy_bytes_per_s};
  if (p.nvls) {
    members.push_back(&p.nvls_simple.base_s);
    members.push_back(&p.nvls_simple.bytes_per_s);
  }
  return members;
}

/// Rings of eight reach 0.96 to 0.99 of NCCL's nominal rate at 8 GiB and more; the step that copies
/// a rank's own part takes the difference.
constexpr double kRingOverNominal = 1.03;

/// Where NCCL's table and the nominal ring would put the fitted members.
CollectiveParams prior(CollectiveParams p) {
  const double bus = p.nominal_bytes_per_s;
  const auto& t = p.nccl;
  p.ll = {t.ring_base_s[0], t.ring_nvlink_hop_s[0], 0.4 * bus};
  p.ll_channel_bytes_per_s = 0.03 * bus;
  p.ll_spread_s = 2e-6;
  p.ll128 = {t.ring_base_s[1], t.ring_nvlink_hop_s[1], 0.7 * bus};
  p.simple = {t.ring_base_s[2], t.ring_nvlink_hop_s[2], kRingOverNominal * bus};
  p.simple_sqrt_s = 5e-9;
  p.gather_copy_bytes_per_s = 3 * bus;
  p.reduce_copy_bytes_per_s = 3 * bus;
  p.nvls_simple = {60e-6, 0, p.nominal_nvls_bytes_per_s};
  return p;
}

CollectiveParams fit(const std::vector<CollectiveRow>& rows, const CollectiveParams& start) {
  CollectiveParams params = prior(start);
  const std::vector<double*> members = fitted(params);
  std::vector<double> centre;
  std::vector<double> weight;
  for (const double* member : members) {
    centre.push_back(*member);
    // What huge messages reach is published, and lies beyond the tables: it is held tightly.
    const bool asymptote =
        member == &params.simple.bytes_per_s || member == &params.nvls_simple.bytes_per_s;
    weight.push_back(asymptote ? 2.0 : 2e-4);
  }
  const auto objective = [&](const std::vector<double>& x) {
    double pull = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      *members[i] = x[i];
      pull += weight[i] * std::pow(std::log(x[i] / centre[i]), 2);
    }
    double sum = 0;
    for (const CollectiveRow& row : rows)
      sum += std::abs(std::log(predicted_time_s(row, params) / row.time_s));
    return sum / static_cast<double>(rows.size()) + pull;
  };
  Minimum best = minimize_positive(objective, centre, {.max_evaluations = 60000});
  for (std::size_t i = 0; i < members.size(); ++i) *members[i] = rounded(best.at[i], 4);
  return params;
}

}  // namespace

CollectiveFit fit_collectives(const std::vector<CollectiveRow>& rows,
                              const profiles::CollectiveParams& start) {
  if (rows.size() < 30)
    throw Error(
        fmt::format("{} collectives of one GPU, expected at least 30 for a fit", rows.size()));
  for (const CollectiveRow& row : rows)
    if (row.nodes != 1)
      throw Error(fmt::format("line {}: a collective on {} nodes, expected one node for a fit",
                              row.line, row.nodes));
  const auto fit_to = [&](const std::vector<CollectiveRow>& training) {
    return fit(training, start);
  };
  const auto predict = [](const CollectiveRow& row, const CollectiveParams& p) {
    return predicted_time_s(row, p);
  };
  CollectiveFit result;
  result.params = fit_to(rows);
  std::vector<double> in_sample;
  for (const CollectiveRow& row : rows)
    in_sample.push_back(relative_error(predict(row, result.params), row.time_s));
  result.in_sample = summarize_errors(in_sample);
  result.held_out = summarize_errors(held_out_errors(rows, fit_to, predict, [](const auto& row) {
    return fold_of({row.ranks, static_cast<std::int64_t>(row.collective),
                    static_cast<std::int64_t>(row.bytes)});
  }));
  return result;
}

}  // namespace shardwright::sim
