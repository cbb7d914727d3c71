// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/fit_dispatch.h"

#include <cmath>

#include "sim/core/base/parse_number.h"
#include "sim/fit/held_out.h"
#include "sim/fit/minimize.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
namespace {

using profiles::DispatchParams;
using profiles::ExchangeParams;

double predicted(const DispatchRow& row, const DispatchParams& p) {
  return dispatch_cost(p, row.shape, 0, row.sms).time_s;
}
double predicted(const DispatchRow& row, const ExchangeParams& p) {
  return exchange_cost(p, row.shape, 0).time_s;
}

std::vector<double> parameters_of(const DispatchParams& p) {
  return {p.t0_s, p.token_s, p.sm_bytes_per_s, p.link_bytes_per_s};
}
std::vector<double> parameters_of(const ExchangeParams& p) {
  return {p.base_s, p.sqrt_s, p.bytes_per_s};
}
void set_values(DispatchParams& p, const std::vector<double>& x) {
  p = {rounded(x[0], 4), rounded(x[1], 4), rounded(x[2], 4), rounded(x[3], 4)};
}
void set_values(ExchangeParams& p, const std::vector<double>& x) {
  p = {rounded(x[0], 4), rounded(x[1], 4), rounded(x[2], 4)};
}

std::uint32_t fold(const DispatchRow& row) {
  return fold_of({static_cast<std::int64_t>(row.shape.tokens),
                  static_cast<std::int64_t>(row.shape.token_bytes), row.shape.per_token,
                  row.shape.experts, row.shape.ranks, row.sms});
}

template <typename Params>
Params fit_values(const std::vector<DispatchRow>& rows, const Params& start) {
  Params params = start;
  const auto objective = [&](const std::vector<double>& x) {
    set_values(params, x);
    double sum = 0;
    for (const DispatchRow& row : rows)
      sum += std::abs(std::log(predicted(row, params) / row.time_s));
    return sum;
  };
  const Minimum best =
      minimize_positive(objective, parameters_of(start), {.max_evaluations = 3000});
  set_values(params, best.at);
  return params;
}

template <typename Params>
DispatchFit<Params> fit(const std::vector<DispatchRow>& rows, const Params& start) {
  DispatchFit<Params> result;
  result.params = fit_values(rows, start);
  std::vector<double> errors;
  for (const DispatchRow& row : rows)
    errors.push_back(relative_error(predicted(row, result.params), row.time_s));
  result.in_sample = summarize_errors(errors);
  result.held_out = summarize_errors(held_out_errors(
      rows, [&](const auto& some) { return fit_values(some, result.params); },
      [](const DispatchRow& row, const Params& p) { return predicted(row, p); }, fold));
  return result;
}

double positive(const CsvRow& row, std::string_view column) {
  const double value = row.require<double>(column);
  if (!(value > 0)) row.fail(column, "a number above 0");
  return value;
}

std::int64_t count(const CsvRow& row, std::string_view column) {
  const auto value = row.require<std::int64_t>(column);
  if (value < 1) row.fail(column, "1 or more");
  return value;
}

}  // namespace

std::vector<DispatchRow> read_dispatch_table(const CsvTable& table) {
  std::vector<DispatchRow> rows;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    DispatchRow r;
    r.gpu = row.require<std::string>("gpu");
    r.shape.ranks = r.shape.ranks_in_domain = count(row, "ranks");
    r.shape.tokens = positive(row, "tokens");
    r.shape.token_bytes = positive(row, "hidden") * positive(row, "element_bytes");
    r.shape.per_token = count(row, "topk");
    r.shape.experts = count(row, "experts");
    if (r.shape.experts % r.shape.ranks != 0) row.fail("experts", "a multiple of the ranks");
    r.sms = static_cast<int>(count(row, "sms"));
    r.time_s = positive(row, "time_us") * 1e-6;
    rows.push_back(std::move(r));
  }
  return rows;
}

std::vector<DispatchRow> read_exchange_table(const CsvTable& table) {
  std::vector<DispatchRow> rows;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    DispatchRow r;
    r.gpu = row.require<std::string>("gpu");
    r.shape.ranks = r.shape.ranks_in_domain = count(row, "gpus");
    r.shape.tokens = 1;
    r.shape.token_bytes = positive(row, "total_bytes");
    r.time_s = positive(row, "time_us") * 1e-6;
    rows.push_back(std::move(r));
  }
  return rows;
}

DispatchFit<DispatchParams> fit_dispatch(const std::vector<DispatchRow>& rows,
                                         const DispatchParams& start) {
  return fit(rows, start);
}

DispatchFit<ExchangeParams> fit_exchange(const std::vector<DispatchRow>& rows,
                                         const ExchangeParams& start) {
  return fit(rows, start);
}

}  // namespace shardwright::sim
