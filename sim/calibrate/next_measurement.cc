// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/next_measurement.h"

#include <fmt/core.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "sim/calibrate/rows.h"

namespace shardwright::sim {
namespace {

using Eigen::Index;
using Eigen::VectorXd;
using profiles::CostGroup;
using profiles::MeasuredRow;

constexpr double kValueDifference = 0.02;     // of logarithms
constexpr double kLeastMeasuredNoise = 0.01;  // of a measurement made on purpose: its median

MeasuredRow candidate(WorkKind kind, OpKind op, Phase phase = Phase::kForward) {
  MeasuredRow row;
  row.operation.work.kind = kind;
  row.operation.op = op;
  row.operation.phase = phase;
  row.operation.seconds = 1;
  row.count = 1;
  return row;
}

void add_products(int dtype_bytes, std::vector<MeasuredRow>& list) {
  for (const std::int64_t m : {256, 2048, 8192}) {
    for (const std::int64_t n : {256, 1024, 4096, 16384}) {
      for (const std::int64_t k : {64, 1024, 8192}) {
        MeasuredRow& row = list.emplace_back(candidate(WorkKind::kGemm, OpKind::kUpProjection));
        row.operation.work.m = m;
        row.operation.work.n = n;
        row.operation.work.k = k;
        row.operation.work.dtype_bytes = static_cast<std::uint8_t>(dtype_bytes);
      }
    }
  }
}

void add_attention(std::vector<MeasuredRow>& list) {
  for (const bool backward : {false, true}) {
    for (const std::int64_t tokens : {256, 1024, 4096, 16384}) {
      for (const std::int64_t head : {64, 128}) {
        MeasuredRow& row =
            list.emplace_back(candidate(WorkKind::kAttention, OpKind::kAttention,
                                        backward ? Phase::kBackward : Phase::kForward));
        row.operation.work.m = 32;
        row.operation.work.n = tokens;
        row.operation.work.k = head;
        row.operation.work.backward = backward;
      }
    }
  }
}

void add_memory(std::vector<MeasuredRow>& list) {
  const auto add = [&](OpKind op, Phase phase, MemoryClass kind) {
    for (const std::int64_t bytes : {64'000, 16'000'000, 500'000'000}) {
      MeasuredRow& row = list.emplace_back(candidate(WorkKind::kMemory, op, phase));
      row.operation.work.memory_class = kind;
      row.operation.work.bytes = bytes;
      row.lowered = true;
    }
  };
  for (const OpKind op : {OpKind::kEmbedding, OpKind::kNorm, OpKind::kRope, OpKind::kActivation,
                          OpKind::kResidual, OpKind::kLoss}) {
    add(op, Phase::kForward, MemoryClass::kStream);
    add(op, Phase::kBackward, MemoryClass::kStream);
  }
  add(OpKind::kOptimizer, Phase::kOptimizer, MemoryClass::kStream);
  add(OpKind::kHostWork, Phase::kForward, MemoryClass::kStream);
  add(OpKind::kCastGradient, Phase::kReduce, MemoryClass::kCast);
  add(OpKind::kConcatenate, Phase::kReduce, MemoryClass::kConcatenate);
  add(OpKind::kCopyOut, Phase::kForward, MemoryClass::kCopy);
  add(OpKind::kScale, Phase::kReduce, MemoryClass::kScale);
  add(OpKind::kAccumulate, Phase::kReduce, MemoryClass::kAdd);
}

void add_collectives(const Cluster& cluster, const std::vector<MeasuredRow>& rows,
                     std::vector<MeasuredRow>& list) {
  const auto add = [&](std::int64_t ranks, std::int64_t nodes) {
    for (const OpKind op : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllReduce}) {
      for (const double bytes : {32e3, 1e6, 16e6, 64e6, 1e9}) {
        MeasuredRow& row = list.emplace_back(candidate(WorkKind::kCollective, op));
        row.operation.work.bytes = static_cast<std::int64_t>(bytes);
        row.operation.ranks = ranks;
        row.operation.nodes = nodes;
        if (cluster.devices_per_node > 0) {
          row.operation.sharers = static_cast<std::int32_t>(cluster.ranks_per_device(ranks));
        }
      }
    }
  };
  // Ranks that share a device may be many; as many as were seen are of interest.
  std::int64_t in_node = cluster.devices_per_node > 0 ? 2 : cluster.gpus_per_node;
  for (const MeasuredRow& row : rows) {
    if (cluster.devices_per_node > 0) in_node = std::max(in_node, row.operation.ranks);
  }
  if (in_node > 1) add(in_node, 1);
  if (cluster.nics_per_node > 0) {
    add(2 * cluster.gpus_per_node, 2);
    add(8 * cluster.gpus_per_node, 8);
  }
}

std::vector<MeasuredRow> candidates(CostGroup group, const profiles::Profile& profile,
                                    const std::vector<MeasuredRow>& rows) {
  std::vector<MeasuredRow> list;
  switch (group) {
    case CostGroup::kProducts: {
      int dtype_bytes = 2;
      for (const MeasuredRow& row : rows) {
        if (group_of(row) == group) dtype_bytes = row.operation.work.dtype_bytes;
      }
      add_products(dtype_bytes, list);
      break;
    }
    case CostGroup::kAttention:
      add_attention(list);
      break;
    case CostGroup::kMemory:
      add_memory(list);
      break;
    case CostGroup::kCollectives:
      add_collectives(profile.cluster, rows, list);
      break;
    case CostGroup::kHost:
      for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kPrepare}) {
        list.push_back(candidate(WorkKind::kHost, OpKind::kHostWork, phase));
        list.back().operation.work.kernels = phase == Phase::kPrepare ? 0 : 1;
      }
      break;
    case CostGroup::kContention:
      break;  // follows from traces of steps that overlap
  }
  return list;
}

std::string words(const MeasuredRow& row) {
  if (row.operation.work.kind == WorkKind::kHost) {
    return "record a trace that shows " + describe(row);
  }
  return "time " + describe(row);
}

/// d log f / d log value, for each value of the group.
template <typename Time>
std::vector<VectorXd> slopes_of(EditableProfile& profile, const std::vector<Adjustable>& values,
                                std::size_t outputs, const Time& log_times) {
  std::vector<VectorXd> slopes(outputs, VectorXd::Zero(static_cast<Index>(values.size())));
  for (std::size_t j = 0; j < values.size(); ++j) {
    double& number = *profile.find(values[j].path);
    const double at = number;
    const double above = std::min(at * std::exp(kValueDifference), values[j].upper);
    const double below = std::max(at * std::exp(-kValueDifference), values[j].lower);
    if (!(above > below) || !(at > 0)) continue;
    number = above;
    const std::vector<double> high = log_times(profile.profile());
    number = below;
    const std::vector<double> low = log_times(profile.profile());
    number = at;
    for (std::size_t i = 0; i < outputs; ++i) {
      const double slope = (high[i] - low[i]) / std::log(above / below);
      if (std::isfinite(slope)) slopes[i][static_cast<Index>(j)] = slope;
    }
  }
  return slopes;
}

}  // namespace

TimeOf time_of_rows(const std::vector<MeasuredRow>& rows, const Sharing& sharing) {
  return [rows, sharing](const profiles::Profile& profile) {
    const RowTimes times(profile, sharing);
    double sum = 0;
    for (const MeasuredRow& row : rows) {
      sum += static_cast<double>(row.count) * times.seconds(row);
    }
    return sum;
  };
}

NextMeasurement next_measurement(const CalibrationResult& result, const TimeOf& time) {
  // The formulas, without the products that happen to be known.
  profiles::Profile formulas = result.profile;
  formulas.measured_products.clear();
  EditableProfile profile(std::move(formulas));
  const auto log_time = [&](const profiles::Profile& p) {
    return std::vector<double>{std::log(time(p))};
  };
  NextMeasurement best;
  double variance = 0, most = 0, variance_of_best = 0;
  for (const GroupFit& fit : result.groups) {
    if (fit.adjustable.empty()) continue;
    const VectorXd step = slopes_of(profile, fit.adjustable, 1, log_time).front();
    const Eigen::Map<const Eigen::MatrixXd> posterior(fit.posterior.data(), step.size(),
                                                      step.size());
    const VectorXd uncertainty = posterior * step;
    const double own = step.dot(uncertainty);
    variance += own;
    const std::vector<MeasuredRow> list = candidates(fit.group, result.profile, result.rows);
    const auto log_times = [&](const profiles::Profile& p) {
      const RowTimes times(p, result.sharing);
      std::vector<double> logs;
      for (const MeasuredRow& row : list) logs.push_back(std::log(times.alone_s(row)));
      return logs;
    };
    const std::vector<VectorXd> slopes = slopes_of(profile, fit.adjustable, list.size(), log_times);
    const double noise = std::max(kLeastMeasuredNoise, fit.noise);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const double gain = std::pow(slopes[i].dot(uncertainty), 2) /
                          (noise * noise + slopes[i].dot(posterior * slopes[i]));
      // Of equals the first, which is the smallest.
      if (gain > most * 1.001) {
        most = gain;
        best.group = fit.group;
        best.what = words(list[i]);
        variance_of_best = own;
      }
    }
  }
  best.before = std::sqrt(variance);
  best.after = std::sqrt(std::max(0.0, variance - most));
  best.group_share = variance > 0 ? variance_of_best / variance : 0;
  return best;
}

}  // namespace shardwright::sim
