// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/host_costs.h"

#include <algorithm>
#include <cmath>

#include "sim/calibrate/group_errors.h"
#include "sim/calibrate/lad.h"
#include "sim/calibrate/row_time.h"
#include "sim/calibrate/rows.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::sim {
namespace {

using profiles::CostGroup;
using profiles::MeasuredRow;

constexpr std::int64_t kFewestCalls = 5;

struct Sum {
  double seconds = 0, launches = 0, variance = 0;  // of the mean of one timing
  std::int64_t timings = 0, rows = 0;

  void add(const MeasuredRow& row, double launches_each) {
    const auto n = static_cast<double>(row.count);
    seconds += n * row.operation.seconds;
    launches += n * launches_each;
    variance += n * std::pow(row.spread * row.operation.seconds, 2);
    timings += row.count;
    ++rows;
  }
};

/// Which of the values the row measures, and how many of it.
const char* path_of(const MeasuredRow& row) {
  const auto& o = row.operation;
  if (o.work.kernels == 0) return "stack.host.step_s";
  if (is_collective(o.op)) return nullptr;  // follows from launches
  return o.phase == Phase::kBackward || o.phase == Phase::kReduce ? "stack.host.backward_launch_s"
                                                                  : "stack.host.forward_launch_s";
}

}  // namespace

GroupFit fit_host(EditableProfile& profile, const std::vector<MeasuredRow>& rows) {
  GroupFit result;
  result.group = result.errors.group = CostGroup::kHost;
  result.adjustable = adjustable_values(profile.profile(), CostGroup::kHost);
  const std::size_t count = result.adjustable.size();
  result.posterior.assign(count * count, 0.0);
  std::vector<Target> targets;
  for (const MeasuredRow& row : rows) {
    if (group_of(row) != CostGroup::kHost) continue;
    result.seconds += row.operation.seconds * static_cast<double>(row.count);
    if (path_of(row) != nullptr && row.operation.seconds > 0) {
      targets.push_back({row, row.operation.seconds, false, 0});
    }
  }
  const std::vector<double> before = log_errors(profile.profile(), targets, {});
  for (std::size_t j = 0; j < count; ++j) {
    const Adjustable& adjustable = result.adjustable[j];
    Sum sum;
    for (const MeasuredRow& row : rows) {
      if (group_of(row) != CostGroup::kHost || path_of(row) == nullptr ||
          adjustable.path != path_of(row)) {
        continue;
      }
      sum.add(row, row.operation.work.kernels == 0
                       ? 1.0
                       : row.operation.work.kernels *
                             turns(profile.profile().cluster.gpu, row.operation.sharers));
    }
    FittedValue& value = result.values.emplace_back();
    value.path = adjustable.path;
    double& number = *profile.find(adjustable.path);
    value.before = value.after = value.low = value.high = number;
    value.rows = sum.rows;
    value.determined = sum.timings >= kFewestCalls;
    double relative = adjustable.spread;
    if (value.determined) {
      const double mean = sum.seconds / sum.launches;
      const double error = std::sqrt(sum.variance) / sum.launches;
      const double width = student_975(static_cast<double>(sum.timings - 1)) * error;
      number = value.after = rounded(std::max(mean, 0.0), 7);
      value.low = std::max(0.0, value.after - width);
      value.high = value.after + width;
      if (mean > 0) relative = std::min(relative, std::max(error / mean, 1e-3));
    } else {
      value.why_not = sum.timings == 0 ? "no measurement depends on it" : "fewer than five timings";
    }
    result.posterior[j * count + j] = relative * relative;
  }
  const std::vector<double> after = log_errors(profile.profile(), targets, {});
  fill_errors(targets, before, after, after, 0, result.errors);
  return result;
}

}  // namespace shardwright::sim
