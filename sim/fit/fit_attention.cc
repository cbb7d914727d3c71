// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/fit_attention.h"

#include <algorithm>
#include <cmath>

#include "sim/core/base/parse_number.h"
#include "sim/fit/minimize.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
namespace {

using profiles::AttentionParams;

/// One row more than a held-out fit of two parameters needs.
constexpr std::ptrdiff_t kLeastRows = 4;

double saturating(double ceiling, double s0, double seq_len) {
  return ceiling * seq_len / (seq_len + s0);
}

double predicted(const AttentionRow& row, const AttentionParams& p) {
  const double forward = saturating(p.forward_flops, p.forward_s0, row.seq_len);
  const double backward = saturating(p.backward_flops, p.backward_s0, row.seq_len);
  if (row.pass == AttentionPass::kForward) return forward;
  if (row.pass == AttentionPass::kBackward) return backward;
  return 3.5 / (1 / forward + 2.5 / backward);  // backward does 2.5 times the flops
}

/// Least absolute deviations of two parameters over the rows that `belongs` picks.
template <typename Belongs>
bool fit_pair(const std::vector<AttentionRow>& rows, AttentionParams& params, double& ceiling,
              double& s0, std::ptrdiff_t least, Belongs belongs) {
  if (std::count_if(rows.begin(), rows.end(), belongs) < least) return false;
  double highest = 0;
  for (const AttentionRow& row : rows) highest = std::max(highest, row.flops_per_s);
  const auto objective = [&](const std::vector<double>& x) {
    ceiling = x[0];
    s0 = x[1];
    double sum = 0;
    for (const AttentionRow& row : rows)
      if (belongs(row)) sum += std::abs(std::log(predicted(row, params) / row.flops_per_s));
    // Tables that begin at long sequences leave s0 open; 800 tokens is what complete ones give.
    return sum + 1e-2 * std::pow(std::log(s0 / 800), 2);
  };
  const Minimum best =
      minimize_positive(objective, {1.05 * highest, 600}, {.max_evaluations = 4000});
  ceiling = rounded(best.at[0], 4);
  s0 = rounded(best.at[1], 3);
  return true;
}

/// A pass with fewer than `least` rows keeps what `start` says.
AttentionFit fit(const std::vector<AttentionRow>& rows, const AttentionParams& start,
                 std::ptrdiff_t least) {
  AttentionFit result;
  AttentionParams& p = result.params;
  p = start;
  result.forward_fitted =
      fit_pair(rows, p, p.forward_flops, p.forward_s0, least,
               [](const auto& row) { return row.pass == AttentionPass::kForward; });
  result.backward_fitted =
      fit_pair(rows, p, p.backward_flops, p.backward_s0, least,
               [](const auto& row) { return row.pass != AttentionPass::kForward; });
  if (result.forward_fitted && !result.backward_fitted) {
    // Keep the published ratio of the two passes.
    p.backward_flops = rounded(p.forward_flops * start.backward_flops / start.forward_flops, 4);
  }
  return result;
}

}  // namespace

std::vector<AttentionRow> read_attention_table(const CsvTable& table) {
  std::vector<AttentionRow> rows;
  for (const auto column : {"gpu", "kernel", "pass", "seq_len", "head_dim", "causal", "tflops"})
    table.column(column);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    AttentionRow r;
    r.gpu = row.require<std::string>("gpu");
    r.kernel = row.require<std::string>("kernel");
    const std::string pass = row.require<std::string>("pass");
    if (pass == "backward") {
      r.pass = AttentionPass::kBackward;
    } else if (pass == "forward+backward") {
      r.pass = AttentionPass::kBoth;
    } else if (pass != "forward") {
      row.fail("pass", "forward, backward or forward+backward");
    }
    r.seq_len = row.require<double>("seq_len");
    if (!(r.seq_len >= 1)) row.fail("seq_len", "at least 1 token");
    r.flops_per_s = row.require<double>("tflops") * 1e12;
    if (!(r.flops_per_s > 0)) row.fail("tflops", "TFLOP/s above 0");
    if (row.require<int>("head_dim") == 128 && row.require<int>("causal") == 1)
      rows.push_back(std::move(r));
  }
  return rows;
}

AttentionFit fit_attention(const std::vector<AttentionRow>& rows,
                           const profiles::AttentionParams& start) {
  AttentionFit result = fit(rows, start, kLeastRows);
  std::vector<double> in_sample;
  std::vector<double> held_out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool fitted =
        rows[i].pass == AttentionPass::kForward ? result.forward_fitted : result.backward_fitted;
    if (!fitted) continue;
    std::vector<AttentionRow> others = rows;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    in_sample.push_back(relative_error(predicted(rows[i], result.params), rows[i].flops_per_s));
    held_out.push_back(relative_error(predicted(rows[i], fit(others, start, kLeastRows - 1).params),
                                      rows[i].flops_per_s));
  }
  result.in_sample = summarize_errors(in_sample);
  result.held_out = summarize_errors(held_out);
  return result;
}

}  // namespace shardwright::sim
