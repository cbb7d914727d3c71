// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "sim/core/base/numbers.h"

namespace shardwright::sim {

namespace {

using profiles::CostGroup;
using profiles::MeasuredRow;
using profiles::Observation;

constexpr double kLongest = 1e5;    // seconds that one kernel may take
constexpr double kShortest = 1e-9;  // less is no measurement
constexpr std::int64_t kLargest = std::int64_t{1} << 46;
constexpr double kMedianToDeviation = 1.4826;  // of a normal distribution
constexpr double kCut = 10;                    // times the median, for the host
/// Of instances that not all ranks were traced in, those without much waiting.
constexpr double kLowQuantile = 0.2;

bool has_direction(const Work& work) {
  return work.kind == WorkKind::kMemory || work.kind == WorkKind::kHost;
}

/// Forward or backward; of the host also the work at the step's ends.
int direction(const Observation& o) {
  if (o.work.kind == WorkKind::kHost && o.work.kernels == 0) return 2;
  return o.phase == Phase::kBackward || o.phase == Phase::kReduce ? 1 : 0;
}

/// What distinguishes rows. Operations keep apart only what a formula or a parameter may see.
using Key = std::tuple<int, int, int, int, int, int, bool, bool, std::int64_t, std::int64_t,
                       std::int64_t, std::int64_t, double, std::int64_t, std::int64_t, int, bool,
                       std::int64_t, std::int32_t>;

int kind_of_op(const Observation& o, bool lowered) {
  switch (o.work.kind) {
    case WorkKind::kGemm:
      return o.op == OpKind::kInputGradient || o.op == OpKind::kWeightGradient
                 ? static_cast<int>(o.op)
                 : 0;
    case WorkKind::kMemory:
      return lowered ? static_cast<int>(o.op) : 0;
    case WorkKind::kCollective:
      return static_cast<int>(o.op);
    case WorkKind::kHost:
      return is_collective(o.op) ? 1 : 0;
    default:
      return 0;
  }
}

int contention_bin(double contended) {
  return contended < kContended ? 0 : contended < 0.5 ? 1 : 2;
}

Key key_of(const Observation& o, bool lowered) {
  const Work& w = o.work;
  return {static_cast<int>(w.kind),
          kind_of_op(o, lowered),
          has_direction(w) ? direction(o) : 0,
          w.dtype_bytes,
          w.kernels,
          static_cast<int>(w.memory_class),
          w.backward,
          w.causal,
          w.m,
          w.n,
          w.k,
          w.bytes,
          w.efficiency,
          o.ranks,
          o.nodes,
          contention_bin(o.contended),
          lowered,
          o.batch,
          o.sharers};
}

/// Why no formula takes the observation; null: one does.
const char* why_not(const Observation& o) {
  const Work& w = o.work;
  if (!std::isfinite(o.seconds) || o.seconds > kLongest) return "times that are no numbers";
  // That a step adds nothing to its operations is a measurement too.
  const bool may_be_zero = w.kind == WorkKind::kHost;
  if (o.seconds < 0 || (o.seconds < kShortest && !may_be_zero)) {
    return "times that are not above 0";
  }
  if (!(o.contended >= 0 && o.contended <= 1)) return "shares of contention outside 0 to 1";
  if (!(w.efficiency > 0 && w.efficiency <= 1e3)) return "efficiencies outside 0 to 1000";
  if (o.batch < 1 || o.batch > kLargest) return "products of no size";
  if (o.sharers < 1 || o.sharers > 1 << 20) return "devices shared by no rank";
  if (w.dtype_bytes == 0 || w.dtype_bytes > 8) return "elements of an unknown size";
  const auto size = [](std::int64_t value) { return value > 0 && value <= kLargest; };
  switch (w.kind) {
    case WorkKind::kGemm:
      if (o.batch > 1) return "batched products";
      return size(w.m) && size(w.n) && size(w.k) && w.kernels > 0 ? nullptr : "products of no size";
    case WorkKind::kAttention:
      if (w.bytes > 0) return "attention that keeps its scores, which follows from other costs";
      return size(w.m) && size(w.n) && size(w.k) ? nullptr : "attention of no size";
    case WorkKind::kMemory:
      return size(w.bytes) && w.kernels > 0 ? nullptr : "memory-bound work of no size";
    case WorkKind::kCollective:
      if (o.ranks <= 1) return "collectives of one rank";
      return (is_collective(o.op) || o.op == OpKind::kReceive) && size(w.bytes) && w.kernels > 0 &&
                     o.nodes >= 1 && o.nodes <= o.ranks && o.ranks <= 1 << 20
                 ? nullptr
                 : "collectives of no size";
    case WorkKind::kHost:
      return nullptr;
    case WorkKind::kTransfer:
    case WorkKind::kNone:
      break;
  }
  return "operations without work";
}

struct Mean {
  double value = 0;
  double relative_deviation = 0;
};

/// Of values cut at `most`.
Mean mean_cut(const std::vector<double>& values, double most) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += std::min(value, most);
  const double mean = sum / n;
  for (const double value : values) squares += std::pow(std::min(value, most) - mean, 2);
  return {mean, mean > 0 ? std::sqrt(squares / std::max(1.0, n - 1)) / mean : 0};
}

struct Timings {
  Observation first;
  std::vector<double> seconds;
  double contended = 0;
  bool lowered = false;
  bool waits = false;  // some instance lacks ranks
};

MeasuredRow row_of(Timings& timings) {
  MeasuredRow row;
  row.operation = timings.first;
  row.operation.instance = -1;
  row.operation.rank = row.operation.step = row.operation.source = 0;
  row.lowered = timings.lowered;
  row.count = static_cast<std::int64_t>(timings.seconds.size());
  row.operation.contended = timings.contended / static_cast<double>(row.count);
  const double median = quantile(timings.seconds, 0.5);
  if (row.operation.work.kind == WorkKind::kHost) {
    const Mean mean = mean_cut(timings.seconds, median > 0 ? kCut * median : kLongest);
    row.operation.seconds = mean.value;
    row.spread = mean.relative_deviation;
    return row;
  }
  row.operation.seconds = timings.waits ? quantile(timings.seconds, kLowQuantile) : median;
  if (median > 0) {
    std::vector<double> deviations;
    for (const double seconds : timings.seconds) {
      deviations.push_back(seconds > 0 ? std::abs(std::log(seconds / median)) : 1);
    }
    row.spread = kMedianToDeviation * quantile(deviations, 0.5);
  }
  return row;
}

/// The ranks of one instance.
struct Instance {
  const Observation* least = nullptr;
  std::int64_t ranks = 0;
};

}  // namespace

Rows rows_of(const profiles::ObservationSet& set) {
  Rows result;
  std::map<std::string, profiles::LeftOut> left_out;
  std::map<std::pair<Key, std::int64_t>, Instance> instances;
  std::map<Key, Timings> timings;
  const auto is_lowered = [&](const Observation& o) {
    const auto source = static_cast<std::size_t>(o.source);
    return o.source >= 0 && source < set.sources.size() &&
           set.sources[source].format == "shardwright";
  };
  const auto add = [&](const Observation& o, bool waits) {
    const bool lowered = is_lowered(o);
    Timings& all = timings[key_of(o, lowered)];
    if (all.seconds.empty()) all.first = o;
    all.lowered = lowered;
    all.seconds.push_back(o.seconds);
    all.contended += o.contended;
    all.waits = all.waits || waits;
  };
  for (const Observation& o : set.observations) {
    if (const char* why = why_not(o)) {
      profiles::LeftOut& entry = left_out[why];
      entry.what = why;
      ++entry.count;
      if (std::isfinite(o.seconds) && o.seconds > 0) entry.seconds += o.seconds;
      continue;
    }
    if (o.instance < 0 || o.ranks <= 1) {
      add(o, false);
      continue;
    }
    // How much of it was contended differs from rank to rank, and does not make it another one.
    Observation same = o;
    same.contended = 0;
    Instance& instance = instances[{key_of(same, false), o.instance}];
    ++instance.ranks;
    if (instance.least == nullptr || o.seconds < instance.least->seconds) instance.least = &o;
  }
  for (const auto& [key, instance] : instances) {
    add(*instance.least, instance.ranks < instance.least->ranks);
  }
  for (auto& [key, all] : timings) result.rows.push_back(row_of(all));
  for (auto& [why, entry] : left_out) result.left_out.push_back(std::move(entry));
  return result;
}

std::vector<MeasuredRow> merged(const std::vector<MeasuredRow>& rows) {
  std::map<Key, std::vector<const MeasuredRow*>> alike;
  for (const MeasuredRow& row : rows) alike[key_of(row.operation, row.lowered)].push_back(&row);
  std::vector<MeasuredRow> result;
  for (const auto& [key, group] : alike) {
    MeasuredRow& row = result.emplace_back(*group.front());
    if (group.size() == 1) continue;
    double count = 0, log_seconds = 0, squares = 0, contended = 0, zero = 0;
    for (const MeasuredRow* one : group) {
      const auto n = static_cast<double>(one->count);
      count += n;
      contended += n * one->operation.contended;
      if (one->operation.seconds > 0) log_seconds += n * std::log(one->operation.seconds);
      zero += one->operation.seconds > 0 ? 0 : n;
    }
    const double mean = zero < count ? log_seconds / (count - zero) : 0;
    for (const MeasuredRow* one : group) {
      const double apart = one->operation.seconds > 0 ? std::log(one->operation.seconds) - mean : 0;
      squares += static_cast<double>(one->count) * (one->spread * one->spread + apart * apart);
    }
    row.operation.seconds = std::exp(mean) * (1 - zero / count);
    row.operation.contended = contended / count;
    row.spread = std::sqrt(squares / count);
    row.count = static_cast<std::int64_t>(count);
  }
  return result;
}

CostGroup group_of(const MeasuredRow& row) {
  switch (row.operation.work.kind) {
    case WorkKind::kGemm:
      return CostGroup::kProducts;
    case WorkKind::kAttention:
      return CostGroup::kAttention;
    case WorkKind::kMemory:
      return CostGroup::kMemory;
    case WorkKind::kCollective:
      return CostGroup::kCollectives;
    default:
      return CostGroup::kHost;
  }
}

namespace {

bool has_kernels_both_ways(OpKind op) {
  return op < OpKind::kAllGather;
}

std::string bytes_text(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.3g} GB", value * 1e-9);
  if (value >= 1e6) return fmt::format("{:.3g} MB", value * 1e-6);
  if (value >= 1e3) return fmt::format("{:.3g} KB", value * 1e-3);
  return fmt::format("{} bytes", bytes);
}

}  // namespace

std::string describe(const MeasuredRow& row) {
  const Observation& o = row.operation;
  const Work& w = o.work;
  switch (w.kind) {
    case WorkKind::kGemm:
      return o.batch > 1 ? fmt::format("{} products of {} x {} x {}", o.batch, w.m, w.n, w.k)
                         : fmt::format("a product of {} x {} x {}", w.m, w.n, w.k);
    case WorkKind::kAttention:
      return fmt::format("attention {} of {} tokens, {} heads of {}",
                         w.backward ? "backward" : "forward", w.n, w.m, w.k);
    case WorkKind::kMemory:
      return fmt::format("{}{} that moves {}", o.op == OpKind::kHostWork ? "a copy" : name_of(o.op),
                         !has_kernels_both_ways(o.op) ? ""
                         : direction(o) == 1          ? " backward"
                                                      : " forward",
                         bytes_text(w.bytes));
    case WorkKind::kCollective:
      if (o.op == OpKind::kReceive) {
        return fmt::format("a message of {} between stages{}", bytes_text(w.bytes),
                           o.nodes > 1 ? " on two nodes" : "");
      }
      return fmt::format("{} of {} on {} ranks{}", name_of(o.op), bytes_text(w.bytes), o.ranks,
                         o.nodes > 1 ? fmt::format(" of {} nodes", o.nodes) : "");
    default:
      break;
  }
  if (w.kernels == 0) return "what a step adds to its operations";
  return fmt::format("the host's launch of a {} kernel",
                     direction(o) == 1 ? "backward" : "forward");
}

namespace {

bool is_backward(const Observation& o) {
  return o.phase == Phase::kBackward || o.phase == Phase::kReduce;
}

/// The kernels of an operation in a stack; null where it has none of its own.
const KernelGroup* kernels_of(const Stack& stack, OpKind op) {
  switch (op) {
    case OpKind::kEmbedding:
      return &stack.embedding;
    case OpKind::kNorm:
    case OpKind::kQkNorm:
      return &stack.norm;
    case OpKind::kRope:
      return &stack.rope;
    case OpKind::kActivation:
      return &stack.gated_activation;
    case OpKind::kResidual:
      return &stack.residual;
    case OpKind::kLoss:
      return &stack.loss;
    default:
      return nullptr;
  }
}

double mixed(double alone, double contended, double share) {
  return share <= 0 ? alone : 1 / ((1 - share) / alone + share / contended);
}

}  // namespace

RowTimes::RowTimes(const profiles::Profile& profile, const Sharing& sharing)
    : profile_(profile), network_(network_of(profile.cluster)), sharing_(sharing) {}

const RowTimes::Costs& RowTimes::costs_for(std::int32_t sharers) const {
  for (const Costs& known : costs_) {
    if (known.sharers == sharers) return known;
  }
  Costs costs;
  costs.sharers = sharers;
  costs.kernels = kernel_costs(profile_, sharers);
  costs.kernels.measured.clear();
  costs.host_turns = turns(profile_.cluster.gpu, sharers);
  costs.collectives = profile_.cost.collectives.values;
  if (profile_.cluster.devices_per_node > 0) {
    costs.copies_take_turns =
        in_device_memory(profile_, sharers * profile_.cluster.devices_per_node, costs.collectives);
  }
  return costs_.emplace_back(std::move(costs));
}

double RowTimes::efficiency_of(const Observation& o) const {
  if (o.work.kind == WorkKind::kGemm) return profile_.stack.gemm_efficiency;
  if (o.op == OpKind::kOptimizer) return profile_.stack.optimizer.efficiency;
  const KernelGroup* kernels = kernels_of(profile_.stack, o.op);
  if (kernels == nullptr) return o.work.efficiency;
  return is_backward(o) ? kernels->backward_efficiency : kernels->forward_efficiency;
}

double RowTimes::kernel_s(const MeasuredRow& row, const Sharing& sharing) const {
  // Element-wise kernels of other programs run at the bandwidth itself.
  const KernelCosts& kernels = costs_for(row.operation.sharers).kernels;
  Work work = row.operation.work;
  if (row.lowered) {
    work.efficiency = efficiency_of(row.operation);
  } else if (work.kind == WorkKind::kMemory) {
    work.memory_class = MemoryClass::kStream;
  }
  if (row.operation.batch <= 1) return kernel_time_s(kernels, work, sharing);
  return kernel_time_s(kernels, work, sharing,
                       [&](std::int64_t m, std::int64_t n, std::int64_t k, int sms) {
                         return gemm_time_s(kernels.gemm, kernels.rates, m, n, k, sms,
                                            row.operation.batch, 2, work.layout);
                       });
}

double RowTimes::host_s(const Observation& o) const {
  const HostCosts& host = profile_.stack.host;
  if (o.work.kernels == 0) return host.step_s;
  const double times = o.work.kernels * costs_for(o.sharers).host_turns;
  if (is_collective(o.op)) return times * host.collective_launches * host.forward_launch_s;
  return times * (is_backward(o) ? host.backward_launch_s : host.forward_launch_s);
}

double RowTimes::collective_s(const Observation& o) const {
  const Costs& costs = costs_for(o.sharers);
  return o.work.kernels *
         collective_of(profile_, costs.collectives, network_, o, costs.copies_take_turns).time_s;
}

double RowTimes::alone_s(const MeasuredRow& row) const {
  const Observation& o = row.operation;
  if (o.work.kind == WorkKind::kHost) return host_s(o);
  return o.work.kind == WorkKind::kCollective ? collective_s(o) : kernel_s(row, {});
}

double RowTimes::contended_s(const MeasuredRow& row) const {
  const Observation& o = row.operation;
  if (o.work.kind == WorkKind::kHost) return host_s(o);
  const profiles::ContentionParams& contention = profile_.cost.contention.values;
  if (o.work.kind != WorkKind::kCollective) {
    return std::max(kernel_s(row, {}), contention.kernels * kernel_s(row, sharing_));
  }
  const bool in_node = o.nodes <= 1 && profile_.cluster.nvlink;
  return collective_s(o) * (in_node ? contention.nvlink_collectives : contention.other_collectives);
}

double RowTimes::seconds(const MeasuredRow& row) const {
  const double share = row.operation.contended;
  if (share < kContended) return alone_s(row);
  return mixed(alone_s(row), contended_s(row), share);
}

CollectiveCost collective_of(const profiles::Profile& profile,
                             const profiles::CollectiveParams& params, const NodeNetwork& network,
                             const Observation& o, double copies_take_turns) {
  CollectiveGroup group;
  group.copies_take_turns = copies_take_turns;
  group.ranks = o.ranks;
  group.ranks_per_node = (o.ranks + o.nodes - 1) / std::max<std::int64_t>(1, o.nodes);
  if (o.nodes > 1) {
    group.groups_per_node =
        std::max<std::int64_t>(1, profile.cluster.gpus_per_node / group.ranks_per_node);
  }
  Collective collective = Collective::kAllGather;
  if (o.op == OpKind::kReduceScatter) collective = Collective::kReduceScatter;
  if (o.op == OpKind::kAllReduce) collective = Collective::kAllReduce;
  if (o.op == OpKind::kBroadcast) collective = Collective::kBroadcast;
  const double bytes = static_cast<double>(o.work.bytes) / std::max<double>(1, o.work.kernels);
  if (o.op == OpKind::kReceive)
    return message_cost(params, network, group, bytes, profile.stack.parallel.message_bytes_per_s);
  return collective_cost(params, network, group, collective, bytes);
}

Sharing sharing_of(const profiles::Profile& profile, const std::vector<MeasuredRow>& rows) {
  // Ranks that share a device have no channels: collectives are copies.
  if (profile.cluster.devices_per_node > 0) return {};
  const NodeNetwork network = network_of(profile.cluster);
  double seconds = 0, channels = 0, hbm_bytes = 0;
  for (const MeasuredRow& row : rows) {
    const Observation& o = row.operation;
    if (o.work.kind != WorkKind::kCollective) continue;
    const CollectiveCost cost = collective_of(profile, profile.cost.collectives.values, network, o);
    const double time = o.seconds * static_cast<double>(row.count);
    seconds += time;
    channels += time * cost.channels;
    hbm_bytes += o.work.kernels * cost.hbm_bytes * static_cast<double>(row.count);
  }
  Sharing sharing;
  if (seconds > 0) {
    sharing.channels = static_cast<int>(std::lround(channels / seconds));
    sharing.hbm_bytes_per_s = hbm_bytes / seconds;
  } else {
    sharing.channels = profile.cost.collectives.values.channels_one_node;
  }
  return sharing;
}

namespace {

constexpr double kMedianOverMean = 1.2533;  // standard error of a median over that of a mean
constexpr double kUnknownSpread = 0.1;      // where nothing was timed three times
constexpr double kBorrowed = 30;            // timings that the usual spread counts as
constexpr double kCannot = 1e6;             // seconds that stand for never
constexpr double kInstant = 1e-12;          // and for no time at all

double log_error(const RowTimes& times, const Target& target) {
  double predicted = times.seconds(target.row);
  if (target.ratio) predicted /= times.alone_s(target.row);
  // What a profile cannot do at all, such as a collective between nodes that are not linked, is as
  // wrong as can be.
  predicted = predicted < kCannot ? predicted : kCannot;
  return std::log(std::max(predicted, kInstant) / target.measured);
}

}  // namespace

std::vector<Target> targets_of(const std::vector<MeasuredRow>& rows, CostGroup group) {
  // Alone and contended rows of equal work, by what they are.
  std::map<std::string, const MeasuredRow*> alone;
  const auto name = [](const MeasuredRow& row) {
    const auto& o = row.operation;
    return fmt::format("{} {} {} {} {} {} {} {}", describe(row), o.work.dtype_bytes, o.work.kernels,
                       static_cast<int>(o.op), static_cast<int>(o.work.memory_class), o.work.causal,
                       row.lowered, o.sharers);
  };
  for (const MeasuredRow& row : rows) {
    if (row.operation.contended < kContended) alone[name(row)] = &row;
  }
  // The spread of a handful of timings says little by itself: it leans on that of all rows.
  std::vector<double> spreads;
  for (const MeasuredRow& row : rows) {
    if (row.count >= 3) spreads.push_back(row.spread);
  }
  const double usual = spreads.empty() ? kUnknownSpread : quantile(spreads, 0.5);
  const auto own_noise = [usual](const MeasuredRow& row) {
    const auto n = static_cast<double>(row.count);
    const double variance =
        (n * row.spread * row.spread + kBorrowed * usual * usual) / (n + kBorrowed);
    return kMedianOverMean * std::sqrt(variance / n);
  };
  std::vector<Target> targets;
  for (const MeasuredRow& row : rows) {
    if (!(row.operation.seconds > 0) || group_of(row) == CostGroup::kHost) continue;
    const bool contended = row.operation.contended >= kContended;
    const auto pair = contended ? alone.find(name(row)) : alone.end();
    if (group == CostGroup::kContention) {
      if (pair == alone.end()) continue;
      targets.push_back({row, row.operation.seconds / pair->second->operation.seconds, true,
                         std::hypot(own_noise(row), own_noise(*pair->second))});
    } else if (group_of(row) == group && pair == alone.end()) {
      targets.push_back({row, row.operation.seconds, false, own_noise(row)});
    }
  }
  return targets;
}

std::vector<double> log_errors(const profiles::Profile& profile, const std::vector<Target>& targets,
                               const Sharing& sharing, const std::vector<std::size_t>& which) {
  const RowTimes times(profile, sharing);
  std::vector<double> errors;
  for (const std::size_t i : which) errors.push_back(log_error(times, targets[i]));
  return errors;
}

std::vector<double> log_errors(const profiles::Profile& profile, const std::vector<Target>& targets,
                               const Sharing& sharing) {
  std::vector<std::size_t> all(targets.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return log_errors(profile, targets, sharing, all);
}

}  // namespace shardwright::sim
