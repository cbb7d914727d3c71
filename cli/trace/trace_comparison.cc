// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/trace_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

constexpr double kAlone = 0.02;  // contended share below which a kernel ran alone

template <class Item>
void sort_by_difference(std::vector<Item>& items) {
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::abs(a.difference_s()) > std::abs(b.difference_s());
  });
}

/// The duration of a kernel had nothing run beside it, as far as the trace shows one that did.
double alone(const TraceSide& side, const TracedOperation& operation) {
  if (operation.contended < kAlone) return operation.duration_s;
  const auto known = side.alone_s.find(without_layer(operation.name));
  if (known == side.alone_s.end()) return operation.duration_s;
  return std::min(known->second, operation.duration_s);
}

double exposed_share(const TracedOperation& operation) {
  return operation.duration_s > 0 ? operation.exposed_s / operation.duration_s : 0;
}

class Comparer {
 public:
  Comparer(const TraceSide& predicted, const TraceSide& measured)
      : predicted_(predicted), measured_(measured) {
    result_.predicted_step_s = predicted.step_s;
    result_.measured_step_s = measured.step_s;
    result_.measured_ranks = measured.ranks;
    result_.measured_steps = measured.steps;
    result_.slow_ranks = measured.slow_ranks;
    result_.slow_steps = measured.slow_steps;
    result_.left_out = predicted.left_out;
    result_.left_out.insert(result_.left_out.end(), measured.left_out.begin(),
                            measured.left_out.end());
    cause(Cause::kHost) = measured.idle_s - predicted.idle_s;
    cause(Cause::kScatter) = measured.scatter_s() - predicted.scatter_s();
  }

  TraceComparison joined() {
    for (const auto& [id, p] : predicted_.operations) {
      const auto at = measured_.operations.find(id);
      if (at == measured_.operations.end()) {
        ++result_.only_predicted;
        add(p, p.duration_s, 0, -p.exposed_s, false);
        cause(Cause::kMissing) -= p.exposed_s;
        continue;
      }
      const TracedOperation& m = at->second;
      add(p, p.duration_s, m.duration_s, m.exposed_s - p.exposed_s, true);
      explain(p, m);
      result_.operations.push_back({id, p.name, p.duration_s, m.duration_s});
    }
    for (const auto& [id, m] : measured_.operations) {
      if (predicted_.operations.contains(id)) continue;
      ++result_.only_measured;
      add(m, 0, m.duration_s, m.exposed_s, false);
      cause(Cause::kMissing) += m.exposed_s;
    }
    return finish();
  }

  /// Ids mean nothing to each other: classes are compared, and explained by what they are.
  TraceComparison by_class(std::vector<std::string> differences) {
    result_.plan_differences = std::move(differences);
    for (const auto& [id, p] : predicted_.operations) {
      add(p, p.duration_s, 0, -p.exposed_s, false);
      cause(p.collective ? Cause::kMessageTime : Cause::kKernelTime) -= p.exposed_s;
    }
    for (const auto& [id, m] : measured_.operations) {
      add(m, 0, m.duration_s, m.exposed_s, false);
      cause(m.collective ? Cause::kMessageTime : Cause::kKernelTime) += m.exposed_s;
    }
    return finish();
  }

 private:
  double& cause(Cause which) { return result_.causes_s[static_cast<std::size_t>(which)]; }

  void add(const TracedOperation& operation, double predicted_s, double measured_s,
           double exposed_s, bool both) {
    for (ComparedClass* entry :
         {&classes_[{operation.phase, operation.kind}], &phases_[{operation.phase, ""}]}) {
      entry->phase = operation.phase;
      entry->operations += both ? 1 : 0;
      entry->predicted_s += predicted_s;
      entry->measured_s += measured_s;
      entry->exposed_difference_s += exposed_s;
    }
    classes_[{operation.phase, operation.kind}].kind = operation.kind;
  }

  void explain(const TracedOperation& p, const TracedOperation& m) {
    const double rp = exposed_share(p), rm = exposed_share(m);
    const double share = (rp + rm) / 2;
    const double total = m.exposed_s - p.exposed_s;
    double first = 0, second = 0;
    if (p.collective) {
      first = share * (m.transfer_s - p.transfer_s);
      second = share * ((m.duration_s - m.transfer_s) - (p.duration_s - p.transfer_s));
    } else {
      const double ap = alone(predicted_, p), am = alone(measured_, m);
      first = share * (am - ap);
      second = share * ((m.duration_s - am) - (p.duration_s - ap));
    }
    cause(p.collective ? Cause::kMessageTime : Cause::kKernelTime) += first;
    cause(p.collective ? Cause::kWaiting : Cause::kContention) += second;
    cause(Cause::kOverlap) += total - first - second;
  }

  TraceComparison finish() {
    for (auto& [key, entry] : classes_) result_.classes.push_back(entry);
    sort_by_difference(result_.classes);
    sort_by_difference(result_.operations);
    constexpr std::array<std::string_view, 7> kOrder{"prepare",  "forward", "loss",     "recompute",
                                                     "backward", "reduce",  "optimizer"};
    for (const std::string_view phase : kOrder) {
      const auto at = phases_.find({std::string(phase), ""});
      if (at != phases_.end()) result_.phases.push_back(at->second);
    }
    return std::move(result_);
  }

  const TraceSide& predicted_;
  const TraceSide& measured_;
  std::map<std::pair<std::string, std::string>, ComparedClass> classes_, phases_;
  TraceComparison result_;
};

}  // namespace

std::string_view name_of(Cause cause) {
  constexpr std::array<std::string_view, kCauses> kNames{
      "kernel time", "contention", "message time",      "waiting for peers",
      "overlap",     "host",       "missing operation", "scatter"};
  return kNames[static_cast<std::size_t>(cause)];
}

double TraceComparison::share(double seconds) const {
  return difference_s() != 0 ? seconds / difference_s() : 0;
}

TraceComparison compare_traces(const ReadTrace& predicted, const std::string& predicted_name,
                               const ReadTrace& measured, const std::string& measured_name) {
  const TraceSide left = side_of(predicted, predicted_name);
  const TraceSide right = side_of(measured, measured_name);
  if (left.step_s <= 0) {
    throw Error(fmt::format("{}: its step takes no time, so nothing can be compared with it",
                            predicted_name));
  }
  Comparer comparer(left, right);
  if (left.identity && right.identity) {
    std::vector<std::string> differ = differences(*right.identity, *left.identity);
    if (!differ.empty()) return comparer.by_class(std::move(differ));
  }
  for (const auto& [id, operation] : left.operations) {
    const auto other = right.operations.find(id);
    if (other == right.operations.end() || other->second.name == operation.name) continue;
    return comparer.by_class(
        {fmt::format("operation {} is {}, not {}", id, other->second.name, operation.name)});
  }
  return comparer.joined();
}

}  // namespace shardwright::cli
