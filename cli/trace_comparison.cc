#include "cli/trace_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

constexpr double kMicro = 1e-6;

struct Operation {
  std::string name, phase, kind;
  double seconds = 0;  // mean over ranks and steps
};

struct Side {
  std::map<std::int64_t, Operation> operations;
  double step_s = 0;
  std::int64_t ranks = 0;
};

/// The mean of all ranks' and steps' slices, or those of the first process alone.
Side side_of(const ReadTrace& trace, const std::string& name, bool first_process_only) {
  struct Extent {
    double begin = std::numeric_limits<double>::max();
    double end = 0;
  };
  std::map<std::pair<std::int64_t, std::int64_t>, Extent> extents;  // by process and step
  std::set<std::int64_t> ranks;
  Side side;
  for (const TraceSlice& slice : trace.slices) {
    if (slice.id < 0 || slice.kind.empty()) continue;
    const auto track = trace.tracks.find({slice.process, slice.track});
    if (track != trace.tracks.end() && track->second == "host") continue;
    if (first_process_only && !ranks.empty() && *ranks.begin() != slice.process) continue;
    ranks.insert(slice.process);
    Operation& operation = side.operations[slice.id];
    operation.name = slice.name;
    operation.phase = slice.phase;
    operation.kind = slice.kind;
    operation.seconds += slice.duration_us * kMicro;
    Extent& extent = extents[{slice.process, slice.step}];
    extent.begin = std::min(extent.begin, slice.begin_us);
    extent.end = std::max(extent.end, slice.begin_us + slice.duration_us);
  }
  if (side.operations.empty()) {
    throw Error(
        fmt::format("{}: no slice has an operation of a schedule, expected a trace of "
                    "predict --trace or run --trace",
                    name));
  }
  const auto samples = static_cast<double>(extents.size());
  for (auto& [id, operation] : side.operations) operation.seconds /= samples;
  for (const auto& [key, extent] : extents) {
    side.step_s += (extent.end - extent.begin) * kMicro / samples;
  }
  side.ranks = static_cast<std::int64_t>(ranks.size());
  return side;
}

template <class Item>
void sort_by_difference(std::vector<Item>& items) {
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::abs(a.difference_s()) > std::abs(b.difference_s());
  });
}

}  // namespace

TraceComparison compare_traces(const ReadTrace& predicted, const std::string& predicted_name,
                               const ReadTrace& measured, const std::string& measured_name) {
  const Side left = side_of(predicted, predicted_name, true);
  const Side right = side_of(measured, measured_name, false);
  TraceComparison comparison;
  comparison.predicted_step_s = left.step_s;
  comparison.measured_step_s = right.step_s;
  comparison.measured_ranks = right.ranks;
  std::map<std::pair<std::string, std::string>, ComparedClass> classes;
  const auto class_of = [&](const Operation& operation) -> ComparedClass& {
    ComparedClass& entry = classes[{operation.phase, operation.kind}];
    entry.phase = operation.phase;
    entry.kind = operation.kind;
    return entry;
  };
  for (const auto& [id, operation] : left.operations) {
    class_of(operation).predicted_s += operation.seconds;
    const auto other = right.operations.find(id);
    if (other == right.operations.end()) {
      ++comparison.only_predicted;
      continue;
    }
    if (other->second.name != operation.name) {
      throw Error(
          fmt::format("{}: operation {} is {}, but in {} it is {}: the traces are not of "
                      "one plan",
                      measured_name, id, other->second.name, predicted_name, operation.name));
    }
    ++class_of(operation).operations;
    comparison.operations.push_back({id, operation.name, operation.seconds, other->second.seconds});
  }
  for (const auto& [id, operation] : right.operations) {
    class_of(operation).measured_s += operation.seconds;
    if (!left.operations.contains(id)) ++comparison.only_measured;
  }
  for (auto& [key, entry] : classes) comparison.classes.push_back(std::move(entry));
  sort_by_difference(comparison.classes);
  sort_by_difference(comparison.operations);
  return comparison;
}

}  // namespace shardwright::cli
