// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/trace_side.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

constexpr double kMicro = 1e-6;
constexpr double kSlowRank = 0.1;
constexpr double kSlowStep = 0.25;
constexpr double kRanAlone = 0.02;  // contended share below which a kernel ran alone

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

bool is_collective(const std::string& kind) {
  return kind == "all_gather" || kind == "reduce_scatter" || kind == "all_reduce" ||
         kind == "broadcast";
}

/// "measured, rank 3" is rank 3 of "measured".
std::string timeline_of(const std::string& process) {
  const std::size_t at = process.rfind(", rank ");
  return at == std::string::npos ? process : process.substr(0, at);
}

struct Sums {
  double duration_us = 0, exposed_us = 0, contended_us = 0;
};

struct Lane {
  std::vector<const TraceSlice*> slices;
  double begin_us = std::numeric_limits<double>::max();  // of the step, on all ranks
  double end_us = 0;
  double kernels_us = 0;
  double idle_us = 0;
  std::map<std::int64_t, Sums> sums;
};

/// Shares a lane's time out to its operations.
void share_out(Lane& lane) {
  struct Edge {
    double at_us;
    bool begins;
    std::size_t slice;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < lane.slices.size(); ++i) {
    const TraceSlice& slice = *lane.slices[i];
    edges.push_back({slice.begin_us, true, i});
    edges.push_back({slice.begin_us + slice.duration_us, false, i});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.at_us, a.begins, a.slice) < std::tie(b.at_us, b.begins, b.slice);
  });
  // Kernels by stream, collectives in the order in which they became resident.
  std::set<std::pair<std::int64_t, std::size_t>> kernels;
  std::set<std::size_t> collectives;
  double before_us = lane.begin_us;
  const auto account = [&](double until_us) {
    const double dt = until_us - before_us;
    before_us = until_us;
    if (dt <= 0) return;
    if (kernels.empty() && collectives.empty()) {
      lane.idle_us += dt;
      return;
    }
    const std::size_t owner = kernels.empty() ? *collectives.begin() : kernels.begin()->second;
    lane.sums[lane.slices[owner]->id].exposed_us += dt;
    if (kernels.empty() || collectives.empty()) return;
    lane.sums[lane.slices[owner]->id].contended_us += dt;
    for (const std::size_t c : collectives) lane.sums[lane.slices[c]->id].contended_us += dt;
  };
  for (const Edge& edge : edges) {
    account(edge.at_us);
    const TraceSlice& slice = *lane.slices[edge.slice];
    const bool collective = is_collective(slice.kind);
    if (edge.begins) {
      lane.sums[slice.id].duration_us += slice.duration_us;
      if (!collective) lane.kernels_us += slice.duration_us;
      if (slice.duration_us <= 0) continue;
      if (collective) {
        collectives.insert(edge.slice);
      } else {
        kernels.insert({slice.track, edge.slice});
      }
    } else if (collective) {
      collectives.erase(edge.slice);
    } else {
      kernels.erase({slice.track, edge.slice});
    }
  }
  account(lane.end_us);
}

std::vector<double> noted_steps(const ReadTrace& trace) {
  std::vector<double> steps;
  const auto at = trace.notes.find("step_time_s");
  if (at == trace.notes.end()) return steps;
  const auto list = nlohmann::json::parse(at->second, nullptr, false);
  if (!list.is_array()) return steps;
  for (const auto& step : list) {
    if (step.is_number() && step.get<double>() > 0) steps.push_back(step.get<double>());
  }
  return steps;
}

class SideReader {
 public:
  SideReader(const ReadTrace& trace, const std::string& name) : trace_(trace), name_(name) {
    side_.identity = identity_in(trace.notes, name);
  }

  TraceSide read() {
    sort_slices();
    for (auto& [key, lane] : lanes_) share_out(lane);
    read_steps();
    read_ranks();
    read_operations();
    return std::move(side_);
  }

 private:
  void sort_slices() {
    std::set<std::int64_t> processes;
    std::string timeline;
    std::set<std::string> others;
    for (const auto& [process, title] : trace_.processes) {
      if (processes.empty()) timeline = timeline_of(title);
      if (timeline_of(title) == timeline) {
        ranks_.emplace(process, static_cast<std::int64_t>(ranks_.size()));
        processes.insert(process);
      } else {
        others.insert(timeline_of(title));
      }
    }
    for (const std::string& other : others) {
      side_.left_out.push_back(
          fmt::format("{}: compared is '{}', not '{}'", name_, timeline, other));
    }
    std::map<std::int64_t, std::pair<double, double>> extents;  // by step
    for (const TraceSlice& slice : trace_.slices) {
      if (slice.id < 0 || slice.kind.empty()) continue;
      if (trace_.processes.empty()) ranks_.emplace(slice.process, std::int64_t(ranks_.size()));
      const auto rank = ranks_.find(slice.process);
      if (rank == ranks_.end()) continue;
      auto& extent =
          extents.try_emplace(slice.step, std::numeric_limits<double>::max(), 0).first->second;
      extent.first = std::min(extent.first, slice.begin_us);
      extent.second = std::max(extent.second, slice.begin_us + slice.duration_us);
      const auto track = trace_.tracks.find({slice.process, slice.track});
      if (track != trace_.tracks.end() && track->second == "host") continue;
      lanes_[{slice.step, rank->second}].slices.push_back(&slice);
      TracedOperation& operation = side_.operations[slice.id];
      if (!operation.name.empty() && operation.name != slice.name) {
        throw Error(fmt::format("{}: operation {} is both {} and {}", name_, slice.id,
                                operation.name, slice.name));
      }
      operation.name = slice.name;
      operation.phase = slice.phase;
      operation.kind = slice.kind;
      operation.collective = is_collective(slice.kind);
    }
    if (lanes_.empty()) {
      throw Error(
          fmt::format("{}: no slice has an operation of a schedule, expected a trace of "
                      "predict --trace or run --trace",
                      name_));
    }
    for (auto& [key, lane] : lanes_) {
      lane.begin_us = extents[key.first].first;
      lane.end_us = extents[key.first].second;
    }
  }

  void read_steps() {
    std::map<std::int64_t, double> lengths;  // by step
    std::set<std::int64_t> ranks;
    for (const auto& [key, lane] : lanes_) {
      lengths[key.first] = (lane.end_us - lane.begin_us) * kMicro;
      ranks.insert(key.second);
    }
    const std::vector<double> noted = noted_steps(trace_);
    std::vector<double> steps, beyond;
    std::size_t i = 0;
    for (auto& [step, length] : lengths) {
      // A step is longer than its operations: the batch goes up before, numbers come down after.
      const double whole = noted.size() == lengths.size() ? std::max(length, noted[i]) : length;
      beyond.push_back(whole - length);
      length = whole;
      steps.push_back(length);
      ++i;
    }
    side_.step_s = median(steps);
    side_.steps = static_cast<std::int64_t>(steps.size());
    side_.ranks = static_cast<std::int64_t>(ranks.size());
    for (const auto& [step, length] : lengths) {
      const double by = length / side_.step_s - 1;
      if (by > kSlowStep) side_.slow_steps.push_back({step, by});
    }
    std::vector<double> idle;
    for (const auto& [key, lane] : lanes_) idle.push_back(lane.idle_us * kMicro);
    side_.idle_s = median(idle) + median(beyond);
  }

  void read_ranks() {
    std::map<std::int64_t, std::vector<double>> kernels;  // by rank
    for (const auto& [key, lane] : lanes_) kernels[key.second].push_back(lane.kernels_us);
    std::vector<double> all;
    std::map<std::int64_t, double> of_rank;
    for (const auto& [rank, times] : kernels) all.push_back(of_rank[rank] = median(times));
    // Of two, the faster one is what the slower one is held against.
    std::sort(all.begin(), all.end());
    const double usual = all[(all.size() - 1) / 2];
    for (const auto& [rank, time] : of_rank) {
      if (usual > 0 && time / usual - 1 > kSlowRank) {
        side_.slow_ranks.push_back({rank, time / usual - 1});
      }
    }
  }

  void read_operations() {
    std::map<std::string, std::vector<double>> alone;
    for (auto& [id, operation] : side_.operations) {
      std::vector<double> durations, exposed, contended;
      std::map<std::int64_t, double> least;  // by step
      for (const auto& [key, lane] : lanes_) {
        const auto at = lane.sums.find(id);
        // A lane without it counts: there it takes no time.
        const Sums sums = at != lane.sums.end() ? at->second : Sums{};
        durations.push_back(sums.duration_us * kMicro);
        exposed.push_back(sums.exposed_us * kMicro);
        const double share = sums.duration_us > 0 ? sums.contended_us / sums.duration_us : 0;
        contended.push_back(share);
        if (at == lane.sums.end()) continue;
        const auto step = least.try_emplace(key.first, durations.back()).first;
        step->second = std::min(step->second, durations.back());
        if (!operation.collective && share < kRanAlone) {
          alone[without_layer(operation.name)].push_back(durations.back());
        }
      }
      operation.duration_s = median(durations);
      operation.exposed_s = median(exposed);
      operation.contended = median(contended);
      std::vector<double> transfers;
      for (const auto& [step, seconds] : least) transfers.push_back(seconds);
      operation.transfer_s = std::min(median(transfers), operation.duration_s);
    }
    for (auto& [name, times] : alone) side_.alone_s[name] = median(std::move(times));
  }

  const ReadTrace& trace_;
  const std::string& name_;
  std::map<std::int64_t, std::int64_t> ranks_;                   // by process
  std::map<std::pair<std::int64_t, std::int64_t>, Lane> lanes_;  // by step and rank
  TraceSide side_;
};

}  // namespace

double TraceSide::scatter_s() const {
  double sum = idle_s;
  for (const auto& [id, operation] : operations) sum += operation.exposed_s;
  return step_s - sum;
}

TraceSide side_of(const ReadTrace& trace, const std::string& name) {
  return SideReader(trace, name).read();
}

std::string without_layer(const std::string& name) {
  if (!name.starts_with("layer")) return name;
  std::size_t end = 5;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
  return "layer" + name.substr(end);
}

}  // namespace shardwright::cli
