// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/stack_from_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "sim/calibrate/fit_group.h"
#include "sim/calibrate/group_problem.h"
#include "sim/calibrate/rows.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/base/parse_number.h"
#include "sim/cost/op_cost.h"

namespace shardwright::sim {

namespace {

using profiles::Observation;
using profiles::ObservationSet;

constexpr double kAlone = 0.05;                 // contended for less than this share: ran alone
constexpr std::int64_t kFewestKernels = 3;      // kernels below which nothing is concluded
constexpr double kLowest = 0.02, kHighest = 5;  // efficiencies; caches lift them above 1

/// Memory-bound work of one operation and direction.
struct Totals {
  double bytes = 0;          // of all kernels
  std::int64_t kernels = 0;  // of all
  double alone_s = 0;        // measured, of kernels that ran alone
  double streaming_s = 0;    // the same bytes at streaming bandwidth, with launches
  std::int64_t alone_kernels = 0;
};

class StackFitter {
 public:
  StackFitter(const ObservationSet& set, const Model& model, const profiles::Profile& profile,
              const profiles::StackFile& start, const std::string& id)
      : set_(set), model_(model), profile_(profile) {
    result_.stack = start;
    result_.stack.stack.id = id;
    result_.job = traced_job(set, model);
    for (const profiles::ObservationSource& source : set.sources) {
      if (source.format == "kineto" || source.format == "nsys") {
        origin_.source += (origin_.source.empty() ? "measured in " : ", ") +
                          source.file.substr(source.file.find_last_of('/') + 1);
        origin_.date = std::max(origin_.date, source.date);
      }
    }
    origin_.confidence = "high";
    result_.stack.stack.description =
        fmt::format("{}, changed to what a trace shows", start.stack.description);
  }

  StackFromTrace fit() {
    collect();
    Stack& stack = result_.stack.stack;
    const double tokens = static_cast<double>(result_.job.micro_batch * result_.job.seq_len);
    const double layers = static_cast<double>(model_.layers);
    const double hidden = tokens * static_cast<double>(model_.hidden);
    // Elements of one forward pass.
    const double norms = (static_cast<double>(model_.norms_per_layer) * layers + 1) * hidden;
    const double rotated = layers * tokens * static_cast<double>(model_.q_dim() + model_.kv_dim());
    kernel_group("norm", OpKind::kNorm, stack.norm, norms, layers * model_.norms_per_layer + 1);
    if (model_.position == Position::kRope && !model_.qk_norm) {
      kernel_group("rope", OpKind::kRope, stack.rope, rotated, layers);
    }
    kernel_group(model_.gated_mlp ? "gated_activation" : "plain_activation", OpKind::kActivation,
                 model_.gated_mlp ? stack.gated_activation : stack.plain_activation,
                 layers * tokens * static_cast<double>(model_.ffn), layers);
    residual(stack.residual);
    efficiency_only("loss", OpKind::kLoss, stack.loss);
    copies(stack.copies);
    single("optimizer.efficiency", stack.optimizer.efficiency,
           totals_[{OpKind::kOptimizer, false}]);
    host(stack.host);
    return std::move(result_);
  }

 private:
  void collect() {
    const auto& rates = profile_.cost.rates.values;
    const auto& memory = profile_.cost.memory.values;
    for (const Observation& o : set_.observations) {
      if (o.work.kind != WorkKind::kMemory || o.work.bytes <= 0) continue;
      const bool backward = o.phase == Phase::kBackward || o.phase == Phase::kReduce;
      Totals& totals = totals_[{o.op, is_sharding(o.op) ? false : backward}];
      const double kernels = std::max<double>(1, o.work.kernels);
      if (o.phase != Phase::kRecompute) {
        totals.bytes += static_cast<double>(o.work.bytes);
        totals.kernels += static_cast<std::int64_t>(kernels);
      }
      if (o.contended >= kAlone) continue;
      totals.alone_s += o.seconds;
      totals.alone_kernels += static_cast<std::int64_t>(kernels);
      totals.streaming_s +=
          kernels * memory_time_s(memory, rates, static_cast<double>(o.work.bytes) / kernels);
    }
  }

  static bool is_sharding(OpKind op) {
    return op == OpKind::kCastShard || op == OpKind::kCopyIn || op == OpKind::kCopyOut ||
           op == OpKind::kConcatenate || op == OpKind::kAccumulate || op == OpKind::kScale ||
           op == OpKind::kOptimizer || op == OpKind::kClip || op == OpKind::kGradientNorm;
  }

  /// NaN: not determined.
  double efficiency_of(const Totals& totals) const {
    const double t1 = static_cast<double>(totals.alone_kernels) * profile_.cost.memory.values.t1_s;
    const double moving = totals.alone_s - t1, ideal = totals.streaming_s - t1;
    // Launches that hide what is moved say nothing about bandwidth.
    if (totals.alone_kernels < kFewestKernels || moving < 0.3 * totals.alone_s || ideal <= 0)
      return NAN;
    const double efficiency = ideal / moving;
    return efficiency >= kLowest && efficiency <= kHighest ? efficiency : NAN;
  }

  void move(const std::string& path, double& value, double after, std::int64_t kernels) {
    result_.changes.push_back({path, value, after, kernels});
    value = after;
    result_.stack.origins[path] = origin_;
  }

  void missing(std::string sentence) { result_.not_determined.push_back(std::move(sentence)); }

  void single(const std::string& path, double& value, const Totals& totals) {
    const double efficiency = efficiency_of(totals);
    if (std::isnan(efficiency)) {
      missing(fmt::format("{} stays {:.3g}: the trace shows {} such kernels that ran alone.", path,
                          value, totals.alone_kernels));
      return;
    }
    move(path, value, efficiency, totals.alone_kernels);
  }

  void efficiency_only(const std::string& name, OpKind op, KernelGroup& group) {
    single(name + ".forward_efficiency", group.forward_efficiency, totals_[{op, false}]);
    single(name + ".backward_efficiency", group.backward_efficiency, totals_[{op, true}]);
  }

  /// Bytes and kernels of one forward or backward, and their efficiency. `elements` and `times` are
  /// those of one pass over the model.
  void kernel_group(const std::string& name, OpKind op, KernelGroup& group, double elements,
                    double times) {
    const double passes = static_cast<double>(result_.job.micro_steps);
    for (const bool backward : {false, true}) {
      const Totals& totals = totals_[{op, backward}];
      const std::string prefix = name + (backward ? ".backward_" : ".forward_");
      double& bytes = backward ? group.backward_bytes : group.forward_bytes;
      int& kernels = backward ? group.backward_kernels : group.forward_kernels;
      double& efficiency = backward ? group.backward_efficiency : group.forward_efficiency;
      const double per_element = totals.bytes / (elements * passes);
      // A trace that shows a fraction of the operation, or another's kernels with it, does not say
      // what the operation is.
      if (totals.kernels < kFewestKernels || per_element < 1.5 || per_element > 6 * bytes) {
        missing(fmt::format("{}* stays: the trace shows {:.1f} bytes an element in {} kernels.",
                            prefix, per_element, totals.kernels));
        continue;
      }
      const int count = std::max(
          1, static_cast<int>(std::lround(static_cast<double>(totals.kernels) / (times * passes))));
      move(prefix + "bytes", bytes, per_element, totals.kernels);
      double counted = kernels;
      move(prefix + "kernels", counted, count, totals.kernels);
      kernels = count;
      single(prefix + "efficiency", efficiency, totals);
    }
  }

  /// One add of two streams each way; in backward other gradients are added by such kernels too, so
  /// that only the speed can be told.
  void residual(KernelGroup& group) { efficiency_only("residual", OpKind::kResidual, group); }

  void copies(CopyEfficiencies& copies) {
    single("copies.cast", copies.cast, totals_[{OpKind::kCastShard, false}]);
    single("copies.concatenate", copies.concatenate, totals_[{OpKind::kConcatenate, false}]);
    Totals both = totals_[{OpKind::kCopyOut, false}];
    const Totals& in = totals_[{OpKind::kCopyIn, false}];
    both.alone_s += in.alone_s;
    both.streaming_s += in.streaming_s;
    both.alone_kernels += in.alone_kernels;
    single("copies.copy", copies.copy, both);
    single("copies.add", copies.add, totals_[{OpKind::kAccumulate, false}]);
  }

  void host(HostCosts& costs) {
    std::vector<double> forward, backward, steps;
    for (const Observation& o : set_.observations) {
      if (o.work.kind != WorkKind::kHost || is_collective(o.op)) continue;
      if (o.work.kernels == 0) {
        steps.push_back(o.seconds);
      } else if (o.phase == Phase::kForward || o.phase == Phase::kLoss) {
        forward.push_back(o.seconds);
      } else if (o.phase == Phase::kBackward) {
        backward.push_back(o.seconds);
      }
    }
    host_value("host.forward_launch_s", costs.forward_launch_s, forward);
    host_value("host.backward_launch_s", costs.backward_launch_s, backward);
    host_value("host.step_s", costs.step_s, steps);
  }

  void host_value(const std::string& path, double& value, const std::vector<double>& seen) {
    if (seen.empty()) {
      missing(fmt::format("{} stays {:.3g} s: the trace shows none.", path, value));
      return;
    }
    move(path, value, upper_median(seen), static_cast<std::int64_t>(seen.size()));
  }

  const ObservationSet& set_;
  const Model& model_;
  const profiles::Profile& profile_;
  profiles::Origin origin_;
  std::map<std::pair<OpKind, bool>, Totals> totals_;
  StackFromTrace result_;
};

}  // namespace

TracedJob traced_job(const ObservationSet& set, const Model& model) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> shapes;  // (batch, length): calls
  for (const Observation& o : set.observations) {
    if (o.work.kind != WorkKind::kAttention || o.work.backward || o.phase == Phase::kRecompute) {
      continue;
    }
    if (o.work.k == model.head_dim && o.work.m % model.heads == 0) {
      ++shapes[{o.work.m / model.heads, o.work.n}];
    }
  }
  if (shapes.empty()) {
    throw Error(fmt::format(
        "The trace shows no attention of {} heads of {}, which {} has, so that batch and length "
        "are not known; record with record_shapes=True, and name the model that was trained.",
        model.heads, model.head_dim, model.name));
  }
  const auto most =
      std::max_element(shapes.begin(), shapes.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  TracedJob job;
  job.micro_batch = most->first.first;
  job.seq_len = most->first.second;
  job.micro_steps = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(
             std::lround(static_cast<double>(most->second) / static_cast<double>(model.layers))));
  for (const profiles::ObservationSource& source : set.sources) {
    job.world_size = std::max(job.world_size, source.world_size);
  }
  return job;
}

StackFromTrace stack_from_trace(const ObservationSet& set, const Model& model,
                                const profiles::Profile& profile, const profiles::StackFile& start,
                                const std::string& id) {
  return StackFitter(set, model, profile, start, id).fit();
}

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
  std::vector<Target> targets;
  for (const MeasuredRow& row : rows) {
    if (group_of(row) != CostGroup::kHost) continue;
    if (path_of(row) != nullptr && row.operation.seconds > 0) {
      targets.push_back({row, row.operation.seconds, false, 0});
    }
  }
  const std::vector<double> before = log_errors(profile.profile(), targets, {});
  for (const Adjustable& adjustable : adjustable_values(profile.profile(), CostGroup::kHost)) {
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
    if (value.determined) {
      const double mean = sum.seconds / sum.launches;
      const double error = std::sqrt(sum.variance) / sum.launches;
      const double width = student_975(static_cast<double>(sum.timings - 1)) * error;
      number = value.after = rounded(std::max(mean, 0.0), 7);
      value.low = std::max(0.0, value.after - width);
      value.high = value.after + width;
    } else {
      value.why_not = sum.timings == 0 ? "no measurement depends on it" : "fewer than five timings";
    }
  }
  const std::vector<double> after = log_errors(profile.profile(), targets, {});
  fill_errors(targets, before, after, after, 0, result.errors);
  return result;
}

}  // namespace shardwright::sim
