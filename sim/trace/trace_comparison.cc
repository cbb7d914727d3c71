// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/trace_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "sim/core/memory_actions.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::sim {

namespace {

template <class Item>
void sort_by_difference(std::vector<Item>& items) {
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::abs(a.difference_s()) > std::abs(b.difference_s());
  });
}

/// The duration of a kernel had nothing run beside it, as far as the trace shows one that did.
double alone(const StepSummary& side, const OperationTimes& times) {
  if (times.contended < kAlone) return times.duration_s;
  const auto known = side.alone_s.find(without_layer(times.operation.name));
  if (known == side.alone_s.end()) return times.duration_s;
  return std::min(known->second, times.duration_s);
}

double exposed_share(const OperationTimes& times) {
  return times.duration_s > 0 ? times.exposed_s / times.duration_s : 0;
}

bool collective(const OperationTimes& times) {
  return times.operation.communicates();
}

/// What of idle time is which cause's; the rest is the host's.
constexpr std::pair<StageWork, Cause> kIdleCauses[] = {{StageWork::kBubble, Cause::kBubble},
                                                       {StageWork::kTransfer, Cause::kMessageTime},
                                                       {StageWork::kReduction, Cause::kMessageTime},
                                                       {StageWork::kGather, Cause::kMessageTime},
                                                       {StageWork::kDeferred, Cause::kKernelTime}};

class Comparer {
 public:
  Comparer(const StepSummary& predicted, const StepSummary& measured)
      : predicted_(predicted), measured_(measured) {
    result_.predicted_step_s = predicted.step_s;
    result_.measured_step_s = measured.step_s;
    result_.measured_ranks = measured.ranks;
    result_.measured_steps = measured.steps;
    result_.slow_ranks = measured.slow_ranks;
    result_.slow_steps = measured.slow_steps;
    result_.predicted_ranks = predicted.ranks;
    result_.predicted_steps = predicted.steps;
    result_.predicted_pipeline = predicted.pipeline;
    result_.measured_pipeline = measured.pipeline;
    result_.predicted_communication = predicted.communication;
    result_.measured_communication = measured.communication;
    cause(Cause::kHost) = measured.idle_s - predicted.idle_s;
    for (const auto& [work, why] : kIdleCauses) {
      const auto at = static_cast<std::size_t>(work);
      const double difference = measured.idle_by_work_s[at] - predicted.idle_by_work_s[at];
      cause(why) += difference;
      cause(Cause::kHost) -= difference;
    }
    cause(Cause::kWaiting) += measured.met_s - predicted.met_s;
    cause(Cause::kHost) -= measured.met_s - predicted.met_s;
    cause(Cause::kKernelTime) += measured.closed_s - predicted.closed_s;
    cause(Cause::kHost) -= measured.closed_s - predicted.closed_s;
    cause(Cause::kScatter) = measured.scatter_s() - predicted.scatter_s();
  }

  TraceComparison joined() {
    for (const auto& [id, p] : predicted_.operations) {
      const auto at = measured_.operations.find(id);
      if (at == measured_.operations.end()) {
        add(p, p.duration_s, 0, -p.exposed_s, false);
        miss(p, -p.exposed_s, result_.only_predicted);
        continue;
      }
      const OperationTimes& m = at->second;
      add(p, p.duration_s, m.duration_s, m.exposed_s - p.exposed_s, true);
      explain(p, m);
      result_.operations.push_back({id, p.operation.name, p.duration_s, m.duration_s});
    }
    for (const auto& [id, m] : measured_.operations) {
      if (predicted_.operations.contains(id)) continue;
      add(m, 0, m.duration_s, m.exposed_s, false);
      miss(m, m.exposed_s, result_.only_measured);
    }
    return finish();
  }

  /// Ids mean nothing to each other: classes are compared, and explained by what they are.
  TraceComparison by_class(std::vector<std::string> differences) {
    result_.plan_differences = std::move(differences);
    for (const auto& [id, p] : predicted_.operations) {
      add(p, p.duration_s, 0, -p.exposed_s, false);
      cause(collective(p) ? Cause::kMessageTime : Cause::kKernelTime) -= p.exposed_s;
    }
    for (const auto& [id, m] : measured_.operations) {
      add(m, 0, m.duration_s, m.exposed_s, false);
      cause(collective(m) ? Cause::kMessageTime : Cause::kKernelTime) += m.exposed_s;
    }
    return finish();
  }

 private:
  double& cause(Cause which) { return result_.causes_s[static_cast<std::size_t>(which)]; }

  void add(const OperationTimes& times, double predicted_s, double measured_s, double exposed_s,
           bool both) {
    const OpKind kind = times.operation.kind;
    const Phase phase = times.operation.phase;
    for (ComparedClass* entry : {&classes_[{phase, kind}], &phases_[phase]}) {
      entry->phase = phase;
      entry->operations += both ? 1 : 0;
      entry->predicted_s += predicted_s * predicted_.stage_share;
      entry->measured_s += measured_s * measured_.stage_share;
      entry->exposed_difference_s += exposed_s;
    }
    classes_[{phase, kind}].kind = kind;
  }

  /// Without a counterpart. Of a message a prediction may have the receive only, or where stages
  /// stand still for it neither.
  void miss(const OperationTimes& times, double exposed_s, std::int64_t& count) {
    const bool message = times.operation.peer >= 0;
    cause(message ? Cause::kMessageTime : Cause::kMissing) += exposed_s;
    count += message ? 0 : 1;
  }

  void explain(const OperationTimes& p, const OperationTimes& m) {
    const double rp = exposed_share(p), rm = exposed_share(m);
    const double share = (rp + rm) / 2;
    const double total = m.exposed_s - p.exposed_s;
    double first = 0, second = 0;
    if (collective(p)) {
      first = share * (m.transfer_s - p.transfer_s);
      second = share * ((m.duration_s - m.transfer_s) - (p.duration_s - p.transfer_s));
    } else {
      const double ap = alone(predicted_, p), am = alone(measured_, m);
      first = share * (am - ap);
      second = share * ((m.duration_s - am) - (p.duration_s - ap));
    }
    cause(collective(p) ? Cause::kMessageTime : Cause::kKernelTime) += first;
    cause(collective(p) ? Cause::kWaiting : Cause::kContention) += second;
    cause(Cause::kOverlap) += total - first - second;
  }

  TraceComparison finish() {
    for (const auto& [key, entry] : classes_) result_.classes.push_back(entry);
    for (const auto& [key, entry] : phases_) result_.phases.push_back(entry);
    sort_by_difference(result_.classes);
    sort_by_difference(result_.operations);
    return std::move(result_);
  }

  const StepSummary& predicted_;
  const StepSummary& measured_;
  std::map<std::pair<Phase, OpKind>, ComparedClass> classes_;
  std::map<Phase, ComparedClass> phases_;
  TraceComparison result_;
};

/// What differs between the plans of two traces; where they do not say, the first operation whose
/// names are others. Empty: nothing.
std::vector<std::string> plan_differences(const StepTrace& predicted, const StepTrace& measured) {
  if (predicted.identity && measured.identity) {
    std::vector<std::string> differ = differences(*measured.identity, *predicted.identity);
    if (!differ.empty()) return differ;
  }
  for (const auto& [id, operation] : predicted.operations) {
    const auto other = measured.operations.find(id);
    if (other == measured.operations.end() || other->second.name == operation.name) continue;
    return {fmt::format("operation {} is {}, not {}", id, other->second.name, operation.name)};
  }
  return {};
}

}  // namespace

std::string_view name_of(Cause cause) {
  static constexpr auto kNames =
      words_up_to<Cause::kBubble>("kernel time", "contention", "message time", "waiting for peers",
                                  "overlap", "host", "missing operation", "scatter", "bubble");
  return name_in(kNames, cause);
}

double TraceComparison::share(double seconds) const {
  return difference_s() != 0 ? seconds / difference_s() : 0;
}

TraceComparison compare_traces(const StepTrace& predicted, const StepTrace& measured) {
  if (!predicted.origin.device.empty() && measured.origin.device.empty()) {
    throw Error(fmt::format("{}: was measured and {} was not, expected the predicted trace first",
                            predicted.name, measured.name));
  }
  const StepSummary left = summary_of(predicted);
  const StepSummary right = summary_of(measured);
  if (left.step_s <= 0) {
    throw Error(fmt::format("{}: its step takes no time, so nothing can be compared with it",
                            predicted.name));
  }
  Comparer comparer(left, right);
  std::vector<std::string> differ = plan_differences(predicted, measured);
  TraceComparison comparison =
      differ.empty() ? comparer.joined() : comparer.by_class(std::move(differ));
  comparison.left_out = predicted.left_out;
  comparison.left_out.insert(comparison.left_out.end(), measured.left_out.begin(),
                             measured.left_out.end());
  for (const auto& [trace, side] : {std::pair(&predicted, &left), std::pair(&measured, &right)}) {
    if (side->closed_s > 0) {
      comparison.left_out.push_back(fmt::format(
          "{}: has the operations of some micro-batches only, of others the passes", trace->name));
    }
  }
  return comparison;
}

PredictedStep predicted_step(Predictor& predictor, const Plan& plan) {
  PredictedStep step;
  PredictOptions options;
  options.timeline = &step.timeline;
  step.prediction = predictor.predict(plan, options);
  step.stages = predictor.program().stages;
  return step;
}

namespace {

struct BytesChange {
  Nanoseconds at_ns = 0;
  Bytes bytes = 0;
};

/// Begin and end of every operation by id; of those without kernels when the host reached them.
std::vector<Span> spans_by_id(const Schedule& schedule, const Timeline& timeline) {
  std::size_t count = 0;
  for_each_op(schedule, [&](const OpInstance&, const Op&) { ++count; });
  std::vector<Span> spans(count);
  const auto take = [&](const Span& span) {
    if (span.id >= 0 && static_cast<std::size_t>(span.id) < count)
      spans[static_cast<std::size_t>(span.id)] = span;
  };
  for (const Span& span : timeline.host) take(span);
  for (const Span& span : timeline.spans) take(span);
  return spans;
}

}  // namespace

std::vector<MemorySample> memory_over_time(const Schedule& schedule, const Timeline& timeline) {
  const std::vector<Span> spans = spans_by_id(schedule, timeline);
  std::map<std::pair<Tensor, std::int32_t>, Bytes> live;  // by tensor and unit
  std::vector<BytesChange> changes;
  MemoryActions actions(schedule);
  for_each_op(schedule, [&](const OpInstance& at, const Op&) {
    const Span& span = spans[static_cast<std::size_t>(at.id)];
    const auto drop = [&](Bytes& bytes) {
      if (bytes > 0) changes.push_back({span.end_ns, -bytes});
      bytes = 0;
    };
    for (const MemoryAction& a : actions.of(at)) {
      if (a.acquire) {
        live[{a.tensor, at.unit + a.offset}] = a.bytes;
        changes.push_back({span.begin_ns, a.bytes});
      } else if (a.offset == kAllUnits) {
        for (auto& [key, bytes] : live) {
          if (key.first == a.tensor) drop(bytes);
        }
      } else {
        drop(live[{a.tensor, at.unit + a.offset}]);
      }
    }
  });
  std::stable_sort(changes.begin(), changes.end(),
                   [](const BytesChange& a, const BytesChange& b) { return a.at_ns < b.at_ns; });
  Bytes total = 0;
  for (const PersistentTensor& tensor : schedule.persistent) total += tensor.bytes;
  std::vector<MemorySample> samples{{0, total, 0}};
  for (const BytesChange& change : changes) {
    total += change.bytes;
    samples.push_back({change.at_ns, total, 0});
  }
  return samples;
}

}  // namespace shardwright::sim
