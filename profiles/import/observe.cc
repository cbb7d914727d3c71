// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/observe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "profiles/import/trace_reader.h"
#include "profiles/import/trace_tables.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

namespace {

// What it costs the host to launch one kernel, from the times between launches.
//
// A thread that launches kernels one after the other spends per kernel what lies between their
// launches: operator dispatch, autograd, Python. Not counted are gaps in which the host waited (a
// synchronisation, an allocation, a full launch queue) and those at FSDP's own hooks; gaps above
// ten times the median count as that much, because then the host did something else.

constexpr std::size_t kFewest = 8;
constexpr Nanoseconds kQueueFull = 50'000;  // a launch that takes longer waited for the device

enum class CallKind : std::uint8_t { kOther, kLaunch, kBlocking };

CallKind kind_of(std::string_view name) {
  const auto contains = [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  if (contains("GraphLaunch")) return CallKind::kBlocking;  // many kernels in one call
  if (contains("LaunchKernel")) return CallKind::kLaunch;
  if (contains("Synchronize") || contains("Malloc") || contains("Free") || contains("Memcpy")) {
    return CallKind::kBlocking;
  }
  return CallKind::kOther;
}

/// One observation (WorkKind::kHost) per step and phase that has at least eight gaps.
std::vector<Observation> launch_costs(const TraceTables& tables, const RangeWalk& walk) {
  std::vector<CallKind> kinds(tables.names.size());
  for (NameId id = 0; id < kinds.size(); ++id) kinds[id] = kind_of(tables.names.text(id));
  const auto& calls = tables.calls;
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < calls.size(); ++i) {
    if (kinds[calls[i].name] != CallKind::kOther) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(calls[a].thread, calls[a].begin, a) <
           std::tie(calls[b].thread, calls[b].begin, b);
  });
  std::map<std::pair<std::int32_t, Phase>, std::vector<double>> gaps;
  std::int32_t last_step = 0;
  Phase last_phase = Phase::kForward;
  bool usable = false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RuntimeCall& call = calls[order[i]];
    const bool good = kinds[call.name] == CallKind::kLaunch && call.end - call.begin < kQueueFull &&
                      !walk.inside_fsdp(call.range);
    const std::int32_t step = good ? walk.step(call.begin) : -1;
    const Phase phase = good ? walk.phase(call.range) : Phase::kForward;
    if (good && usable && i > 0 && calls[order[i - 1]].thread == call.thread && step == last_step &&
        phase == last_phase && step >= 0) {
      gaps[{step, phase}].push_back(static_cast<double>(call.begin - calls[order[i - 1]].begin) *
                                    1e-9);
    }
    usable = good;
    last_step = step;
    last_phase = phase;
  }
  std::vector<Observation> observations;
  for (auto& [key, list] : gaps) {
    if (list.size() < kFewest) continue;
    const double most = 10 * upper_median(list);
    double sum = 0;
    for (const double gap : list) sum += std::min(gap, most);
    Observation seen;
    seen.phase = key.second;
    seen.work.kind = WorkKind::kHost;
    seen.seconds = sum / static_cast<double>(list.size());
    seen.step = key.first;
    if (seen.seconds > 0) observations.push_back(seen);
  }
  return observations;
}

/// What a step adds to its operations (WorkKind::kHost of no kernels): the time between the last
/// kernel that was launched before a step began and the first one launched in it, for which the
/// device had nothing to do. None for the first step of a trace.
std::vector<Observation> step_costs(const TraceTables& tables, const RangeWalk& walk) {
  // By device and step: when its kernels begin and end.
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<Nanoseconds, Nanoseconds>> busy;
  for (const DeviceSpan& span : tables.device) {
    if (span.call == kNoIndex || span.work != DeviceWork::kKernel) continue;
    const std::int32_t step = walk.step(tables.calls[span.call].begin);
    if (step < 0) continue;
    const auto [at, is_new] =
        busy.try_emplace({span.device, step}, std::pair(span.begin, span.end));
    if (is_new) continue;
    at->second.first = std::min(at->second.first, span.begin);
    at->second.second = std::max(at->second.second, span.end);
  }
  std::vector<Observation> observations;
  for (const auto& [key, times] : busy) {
    const auto before = busy.find({key.first, key.second - 1});
    if (before == busy.end()) continue;
    Observation seen;
    seen.phase = Phase::kPrepare;
    seen.work.kind = WorkKind::kHost;
    seen.work.kernels = 0;
    seen.seconds = std::max(0.0, static_cast<double>(times.first - before->second.second) * 1e-9);
    seen.step = key.second;
    observations.push_back(seen);
  }
  return observations;
}

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// "void at::native::foo<...>(...)" to "at::native::foo".
std::string short_kernel_name(std::string name) {
  if (name.starts_with("void ")) name.erase(0, 5);
  for (const std::string_view noise : {"(anonymous namespace)::", "<unnamed>::"}) {
    for (auto at = name.find(noise); at != std::string::npos; at = name.find(noise)) {
      name.erase(at, noise.size());
    }
  }
  name.resize(std::min(name.find_first_of("<("), name.size()));
  if (name.size() > 80) name.resize(80);
  return name;
}

/// Device work of one operator.
struct Group {
  std::uint32_t owner = kNoIndex;
  OperatorWork work;
  Nanoseconds busy = 0, contended = 0;
  int kernels = 0;
  bool of_its_kind = false;  // a product must have run a kernel that multiplies
  Phase phase = Phase::kForward;
  std::int32_t step = 0;
  std::int32_t unit = -1;
};

class Observer {
 public:
  Observer(const TraceTables& tables, const ImportOptions& options, CollectiveInstances& instances,
           ObservationSet& set)
      : t_(tables), options_(options), instances_(instances), set_(set), walk_(tables) {
    source_ = static_cast<std::int32_t>(set.sources.size());
    set.sources.emplace_back(tables.source).step_s = walk_.step_seconds();
    world_ = tables.source.world_size;
    per_node_ = options.gpus_per_node > 0 ? options.gpus_per_node : tables.device_count;
    for (std::size_t i = 0; i < set.units.size(); ++i) {
      units_[set.units[i]] = static_cast<std::int32_t>(i);
    }
  }

  void run() {
    find_overlaps();
    for (const DeviceSpan& span : t_.device) {
      set_.kernel_seconds += seconds(span.end - span.begin);
      device_work(span);
    }
    emit_groups();
    std::vector<Observation> host = launch_costs(t_, walk_);
    for (const Observation& step : step_costs(t_, walk_)) host.push_back(step);
    for (Observation& seen : host) {
      seen.rank = t_.source.rank;
      seen.source = source_;
      set_.observations.push_back(seen);
    }
    emit_left_out();
    say_what_is_missing();
  }

 private:
  static bool is_collective_kernel(const std::string& name) {
    return name.starts_with("nccl") || name.starts_with("void nccl");
  }

  void find_overlaps() {
    std::map<std::int32_t, std::vector<std::pair<Nanoseconds, Nanoseconds>>> compute, collective;
    for (const DeviceSpan& span : t_.device) {
      const bool nccl = is_collective_kernel(t_.names.text(span.name));
      (nccl ? collective : compute)[span.device].emplace_back(span.begin, span.end);
    }
    for (auto& [device, list] : compute) compute_.emplace(device, SpanUnion(std::move(list)));
    for (auto& [device, list] : collective) {
      collectives_.emplace(device, SpanUnion(std::move(list)));
    }
  }

  static Nanoseconds overlap(const std::map<std::int32_t, SpanUnion>& of, const DeviceSpan& span) {
    const auto found = of.find(span.device);
    return found == of.end() ? 0 : found->second.overlap(span.begin, span.end);
  }

  bool full() const { return groups_.size() + single_ >= options_.max_operations; }
  void beyond(const DeviceSpan& span) {
    leave_out(fmt::format("operations beyond the first {}", options_.max_operations), span);
  }

  void leave_out(const std::string& what, const DeviceSpan& span) {
    auto& [count, total] = left_[what];
    ++count;
    total += seconds(span.end - span.begin);
  }

  void device_work(const DeviceSpan& span) {
    const std::string& name = t_.names.text(span.name);
    const std::uint32_t range = span.call == kNoIndex ? kNoIndex : t_.calls[span.call].range;
    if (is_collective_kernel(name)) return collective(span, range);
    if (span.work == DeviceWork::kCopy && name.find("DtoD") == std::string::npos) {
      return leave_out("copies between host and device, or devices", span);
    }
    if (span.from_graph)
      return leave_out("kernels of a CUDA graph, which no operator launches", span);
    const std::uint32_t owner = walk_.owner(range);
    if (owner == kNoIndex) return without_owner(span, range);
    if (!group_of_.contains(owner) && full()) return beyond(span);
    const auto& work = work_at(owner);
    if (!work) {
      return leave_out(
          fmt::format("operators without usable shapes: {}", t_.names.text(t_.ranges[owner].name)),
          span);
    }
    const auto [at, is_new] = group_of_.try_emplace(owner, groups_.size());
    if (is_new) {
      Group group;
      group.owner = owner;
      group.work = *work;
      group.phase = walk_.phase(range);
      if (work->op == OpKind::kLoss && group.phase == Phase::kForward) group.phase = Phase::kLoss;
      if (walk_.inside_fsdp(range)) group.work.op = op_of_sharding(group.work);
      if (group.phase == Phase::kOptimizer) {
        group.work.op = OpKind::kOptimizer;
      } else if (group.work.op == OpKind::kOptimizer || group.work.op == OpKind::kGradientNorm) {
        // Clipping stands before the optimizer's step, without an annotation.
        if (group.work.op == OpKind::kOptimizer) group.work.op = OpKind::kClip;
        group.phase = Phase::kOptimizer;
      }
      group.step = walk_.step(t_.calls[span.call].begin);
      group.unit = unit_of(range);
      groups_.push_back(group);
    }
    Group& group = groups_[at->second];
    group.busy += span.end - span.begin;
    group.contended += overlap(collectives_, span);
    ++group.kernels;
    group.of_its_kind = group.of_its_kind || fits(work->work.kind, name);
  }

  /// FSDP's own copies, however it makes them.
  static OpKind op_of_sharding(const OperatorWork& work) {
    if (work.work.kind != WorkKind::kMemory) return work.op;
    switch (work.work.memory_class) {
      case MemoryClass::kCast:
        return OpKind::kCastShard;
      case MemoryClass::kCopy:
        return work.op == OpKind::kCopyIn ? OpKind::kCopyIn : OpKind::kCopyOut;
      case MemoryClass::kConcatenate:
        return OpKind::kConcatenate;
      case MemoryClass::kScale:
        return OpKind::kScale;
      case MemoryClass::kAdd:
        return OpKind::kAccumulate;
      case MemoryClass::kStream:
        break;
    }
    return work.op;
  }

  static bool fits(WorkKind kind, std::string_view kernel) {
    if (kind != WorkKind::kGemm) return true;
    const std::string_view family = kernel_family(kernel);
    return family == "GEMM" || family == "other";
  }

  /// Operators whose name alone does not say what they are for.
  static bool is_elementwise(OpKind op) {
    return op == OpKind::kHostWork || op == OpKind::kScale || op == OpKind::kAccumulate ||
           op == OpKind::kNorm || op == OpKind::kRope || op == OpKind::kZero;
  }

  const std::optional<OperatorWork>& work_at(std::uint32_t owner) {
    const HostRange& range = t_.ranges[owner];
    const std::uint64_t key = std::uint64_t{range.name} << 32 | range.shapes;
    const auto [at, is_new] = works_.try_emplace(key);
    if (is_new) {
      const std::vector<Argument> arguments = parse_arguments(t_.names.text(range.shapes));
      at->second = work_of(t_.names.text(range.name), arguments);
      if (at->second && options_.model && is_elementwise(at->second->op)) {
        const auto op = operation_in(*options_.model, t_.names.text(range.name), arguments);
        if (op) at->second->op = *op;
      }
    }
    return at->second;
  }

  /// Copies and sets carry their bytes themselves.
  void without_owner(const DeviceSpan& span, std::uint32_t range) {
    const std::string& name = t_.names.text(span.name);
    if (span.work != DeviceWork::kKernel && span.bytes > 0) {
      if (full()) return beyond(span);
      ++single_;
      Observation seen;
      const bool copy = span.work == DeviceWork::kCopy;
      seen.op = copy ? OpKind::kHostWork : OpKind::kZero;
      seen.phase = walk_.phase(range);
      seen.work.kind = WorkKind::kMemory;
      seen.work.memory_class = copy ? MemoryClass::kCopy : MemoryClass::kStream;
      seen.work.bytes = copy ? 2 * span.bytes : span.bytes;
      seen.seconds = seconds(span.end - span.begin);
      seen.contended = share(overlap(collectives_, span), span.end - span.begin);
      finish(seen, walk_.step(span.call == kNoIndex ? span.begin : t_.calls[span.call].begin));
      return;
    }
    const std::string_view family = kernel_family(name);
    const std::string inner = range == kNoIndex ? "" : t_.names.text(t_.ranges[range].name);
    leave_out(
        inner.empty()
            ? fmt::format("kernels without an operator ({}): {}", family, short_kernel_name(name))
            : fmt::format("operators that are not modelled ({}): {}", family, inner),
        span);
  }

  static double share(Nanoseconds part, Nanoseconds whole) {
    return whole > 0 ? std::min(1.0, static_cast<double>(part) / static_cast<double>(whole)) : 0;
  }

  std::int32_t unit_of(std::uint32_t range) {
    const std::string name = walk_.unit(range);
    if (name.empty()) return -1;
    const auto [at, is_new] =
        units_.try_emplace(name, static_cast<std::int32_t>(set_.units.size()));
    if (is_new) set_.units.push_back(name);
    return at->second;
  }

  void finish(Observation seen, std::int32_t step) {
    if (!(seen.seconds > 0)) return;
    seen.rank = t_.source.rank;
    seen.step = step;
    seen.source = source_;
    set_.observations.push_back(seen);
  }

  void collective(const DeviceSpan& span, std::uint32_t range) {
    const CommRecord* comm = span.comm != kNoIndex ? &t_.comms[span.comm] : nullptr;
    const auto around = walk_.collective_range(range);
    if (comm == nullptr && around != kNoIndex && t_.ranges[around].comm != kNoIndex) {
      comm = &t_.comms[t_.ranges[around].comm];
    }
    std::string name;
    double bytes = 0;
    std::int64_t ranks = world_;
    std::vector<std::int64_t> members;
    if (comm != nullptr) {
      name = t_.names.text(comm->collective);
      const std::int64_t elements = std::max(comm->in_elements, comm->out_elements);
      bytes = static_cast<double>(elements) * element_bytes_of(t_.names.text(comm->dtype));
      members = ranks_of(t_.names.text(comm->ranks));
      if (comm->group_size > 0)
        ranks = comm->group_size;
      else if (!members.empty())
        ranks = static_cast<std::int64_t>(members.size());
    } else if (around != kNoIndex) {
      name = t_.names.text(t_.ranges[around].name);
      for (const Argument& argument : parse_arguments(t_.names.text(t_.ranges[around].shapes))) {
        for (const TensorShape& tensor : argument.tensors) bytes += tensor.bytes();
      }
      // Before it recorded sizes PyTorch kept the shape of what a rank sends.
      if (collective_of(name) == OpKind::kAllGather) bytes *= static_cast<double>(ranks);
    }
    const auto op = collective_of(name);
    if (!op) {
      return leave_out(name.empty() ? "collectives that nothing is recorded of"
                                    : "collectives that have no cost model: " + name,
                       span);
    }
    if (!(bytes > 0 && bytes < 1e15) || ranks <= 0) {
      return leave_out("collectives of unknown size: " + name, span);
    }
    if (full()) return beyond(span);
    ++single_;
    Observation seen;
    seen.op = *op;
    seen.phase = walk_.phase(range);
    seen.work.kind = WorkKind::kCollective;
    seen.work.bytes = static_cast<std::int64_t>(bytes);
    seen.work.dtype_bytes = static_cast<std::uint8_t>(
        comm != nullptr ? element_bytes_of(t_.names.text(comm->dtype)) : 2);
    seen.work.group = ranks == world_ ? CommGroup::kWorld : CommGroup::kShard;
    seen.seconds = seconds(span.end - span.begin);
    seen.contended = share(overlap(compute_, span), span.end - span.begin);
    seen.ranks = ranks;
    // One device listed of many ranks: each process saw only its own.
    if (per_node_ > 1 || ranks == 1) {
      seen.nodes = nodes_of(members, ranks, per_node_);
    } else {
      node_unknown_ = true;
      seen.nodes = nodes_of(members, ranks, 8);
    }
    seen.unit = unit_of(range);
    const std::int32_t step =
        walk_.step(span.call == kNoIndex ? span.begin : t_.calls[span.call].begin);
    const std::string group = comm == nullptr    ? "world"
                              : comm->ranks != 0 ? t_.names.text(comm->ranks)
                                                 : t_.names.text(comm->group);
    if (comm != nullptr && comm->sequence >= 0) {
      seen.instance = instances_.number(group, -2, *op, seen.work.bytes, comm->sequence);
    } else {
      const std::int64_t turn = turns_[{group, step, static_cast<int>(*op), seen.work.bytes}]++;
      seen.instance = instances_.number(group, step, *op, seen.work.bytes, turn);
    }
    finish(seen, step);
  }

  /// The number of tokens: rows of most products of the forward pass.
  std::int64_t tokens() const {
    std::map<std::int64_t, int> votes;
    for (const Group& group : groups_) {
      if (group.work.work.kind == WorkKind::kGemm && group.work.batch == 1 &&
          group.phase == Phase::kForward) {
        ++votes[group.work.work.m];
      }
    }
    const auto most =
        std::max_element(votes.begin(), votes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == votes.end() ? 0 : most->first;
  }

  void emit_groups() {
    const std::int64_t rows = tokens();
    for (const Group& group : groups_) {
      if (!group.of_its_kind) {
        auto& [count, total] = left_[fmt::format("operators that ran no kernel of their kind: {}",
                                                 t_.names.text(t_.ranges[group.owner].name))];
        count += group.kernels;
        total += seconds(group.busy);
        continue;
      }
      Observation seen;
      seen.op = group.work.op;
      seen.phase = group.phase;
      seen.work = group.work.work;
      seen.work.kernels = static_cast<std::uint16_t>(std::min(group.kernels, 65535));
      if (seen.work.kind == WorkKind::kGemm) {
        // A product takes its kernels' time as one; `kernels` would mean that many products.
        seen.work.kernels = 1;
        if (group.phase == Phase::kBackward && rows > 0 && group.work.batch == 1) {
          if (seen.work.m == rows)
            seen.op = OpKind::kInputGradient;
          else if (seen.work.k == rows)
            seen.op = OpKind::kWeightGradient;
        }
        seen.work.layout = layout_of(seen.op);
      }
      seen.batch = group.work.batch;
      seen.seconds = seconds(group.busy);
      seen.contended = share(group.contended, group.busy);
      seen.unit = group.unit;
      finish(seen, group.step);
    }
  }

  /// The largest by time each; the rest together.
  void emit_left_out() {
    for (const LeftOut& entry : t_.left_out) {
      count_left_out(set_.left_out, entry.what, entry.seconds, entry.count);
    }
    std::vector<std::pair<std::string, std::pair<std::int64_t, double>>> list(left_.begin(),
                                                                              left_.end());
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.second.second > b.second.second;
    });
    constexpr std::size_t kShown = 24;
    for (std::size_t i = 0; i < list.size(); ++i) {
      count_left_out(set_.left_out, i < kShown ? list[i].first : "other operators and kernels",
                     list[i].second.second, list[i].second.first);
    }
  }

  bool by_nsys() const { return t_.source.format == "nsys"; }

  void say_what_is_missing() {
    const std::string& file = t_.source.file;
    for (const std::string& note : t_.notes) set_.notes.push_back(note);
    if (!t_.has_shapes && (!groups_.empty() || !left_.empty())) {
      set_.notes.push_back(
          fmt::format("{} records no shapes, so that no product can be told: record with {}.", file,
                      by_nsys() ? "torch.autograd.profiler.emit_nvtx(record_shapes=True)"
                                : "torch.profiler.profile(record_shapes=True)"));
    }
    if (t_.device.empty() && t_.ranges.empty()) {
      set_.notes.push_back(fmt::format(
          "{} holds no operations: was it exported in the profiler's on_trace_ready? Each cycle of "
          "its schedule begins with an empty trace.",
          file));
    } else if (t_.device.empty()) {
      set_.notes.push_back(fmt::format("{} shows no work on a GPU, only on the host.", file));
    }
    if (!t_.device.empty() && last_of(set_.sources, file).step_s.empty()) {
      set_.notes.push_back(fmt::format(
          "{} names no steps: {}.", file,
          by_nsys() ? "put each training step into torch.cuda.nvtx.range(\"ProfilerStep#N\")"
                    : "call step() of the profiler once per training step"));
    }
    if (node_unknown_) {
      set_.notes.push_back(
          fmt::format("{} does not say how many GPUs a node has; 8 were assumed.", file));
    }
  }

  const TraceTables& t_;
  const ImportOptions& options_;
  CollectiveInstances& instances_;
  ObservationSet& set_;
  RangeWalk walk_;
  std::int32_t source_ = 0;
  std::int64_t world_ = 0, per_node_ = 0;
  bool node_unknown_ = false;
  std::map<std::int32_t, SpanUnion> compute_, collectives_;
  std::vector<Group> groups_;
  std::size_t single_ = 0;  // observations that no group stands for
  std::unordered_map<std::uint32_t, std::size_t> group_of_;
  std::unordered_map<std::uint64_t, std::optional<OperatorWork>> works_;
  std::map<std::string, std::pair<std::int64_t, double>> left_;
  std::map<std::string, std::int32_t> units_;
  std::map<std::tuple<std::string, std::int32_t, int, std::int64_t>, std::int64_t> turns_;
};

}  // namespace

void observe(const TraceTables& tables, const ImportOptions& options,
             CollectiveInstances& instances, ObservationSet& set) {
  Observer(tables, options, instances, set).run();
}

namespace {

using Arguments = std::vector<Argument>;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// How the bytes of a memory-bound operator follow from its arguments.
enum class Traffic : std::uint8_t {
  kPointwise,     // reads every tensor, writes one of the broadcast shape
  kBroadcastOut,  // the same; the first argument is written too (in place: a_ += b)
  kCopy,          // the second is read, the first written
  kReadAll,       // reads every tensor, writes little (sums, norms)
  kReadWrite,     // reads the first, writes as much (softmax, layer norm forward)
  kGradient,      // reads every tensor, writes as much as the largest
  kWriteFirst,    // writes the first (fill, zero)
  kLists,         // reads the lists of tensors; writes as much as the largest list
  kInPlaceLists,  // reads the lists, writes the first one again
  kAdam,          // reads all lists, writes all but the gradients
  kAllArguments,  // kernels that get inputs and outputs alike (Triton)
  kFirstTwice     // the first is read and written elsewhere; the others are its destination
};

struct MemoryRule {
  std::string_view name;
  Traffic traffic;
  MemoryClass memory_class;
  OpKind op;
};

constexpr MemoryClass kStream = MemoryClass::kStream;
constexpr OpKind kAnyWork = OpKind::kHostWork;

// Sorted by name.
constexpr auto kMemoryRules = std::to_array<MemoryRule>({
    {"aten::_foreach_add_", Traffic::kInPlaceLists, MemoryClass::kAdd, OpKind::kOptimizer},
    {"aten::_foreach_addcdiv_", Traffic::kInPlaceLists, kStream, OpKind::kOptimizer},
    {"aten::_foreach_addcmul_", Traffic::kInPlaceLists, kStream, OpKind::kOptimizer},
    {"aten::_foreach_copy_", Traffic::kInPlaceLists, MemoryClass::kCopy, OpKind::kCopyOut},
    {"aten::_foreach_div_", Traffic::kInPlaceLists, MemoryClass::kScale, OpKind::kOptimizer},
    {"aten::_foreach_lerp_", Traffic::kInPlaceLists, kStream, OpKind::kOptimizer},
    {"aten::_foreach_mul_", Traffic::kInPlaceLists, MemoryClass::kScale, OpKind::kOptimizer},
    {"aten::_foreach_norm", Traffic::kReadAll, kStream, OpKind::kGradientNorm},
    {"aten::_foreach_sqrt", Traffic::kLists, kStream, OpKind::kOptimizer},
    {"aten::_fused_adamw_", Traffic::kAdam, kStream, OpKind::kOptimizer},
    {"aten::_fused_rms_norm", Traffic::kReadWrite, kStream, OpKind::kNorm},
    {"aten::_fused_rms_norm_backward", Traffic::kGradient, kStream, OpKind::kNorm},
    {"aten::_log_softmax", Traffic::kReadWrite, kStream, OpKind::kLoss},
    {"aten::_log_softmax_backward_data", Traffic::kGradient, kStream, OpKind::kLoss},
    {"aten::_softmax", Traffic::kReadWrite, kStream, OpKind::kAttention},
    {"aten::_softmax_backward_data", Traffic::kGradient, kStream, OpKind::kAttention},
    {"aten::add", Traffic::kPointwise, MemoryClass::kAdd, kAnyWork},
    {"aten::add_", Traffic::kBroadcastOut, MemoryClass::kAdd, OpKind::kAccumulate},
    {"aten::cat", Traffic::kLists, MemoryClass::kConcatenate, OpKind::kConcatenate},
    {"aten::copy_", Traffic::kCopy, MemoryClass::kCopy, kAnyWork},
    {"aten::div", Traffic::kPointwise, MemoryClass::kScale, OpKind::kScale},
    {"aten::div_", Traffic::kBroadcastOut, MemoryClass::kScale, OpKind::kScale},
    {"aten::exp", Traffic::kPointwise, kStream, kAnyWork},
    {"aten::fill_", Traffic::kWriteFirst, kStream, OpKind::kZero},
    {"aten::gelu", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::gelu_backward", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::masked_fill_", Traffic::kBroadcastOut, kStream, OpKind::kAttention},
    {"aten::mean", Traffic::kReadAll, kStream, OpKind::kNorm},
    {"aten::mul", Traffic::kPointwise, MemoryClass::kScale, kAnyWork},
    {"aten::mul_", Traffic::kBroadcastOut, MemoryClass::kScale, OpKind::kScale},
    {"aten::native_layer_norm", Traffic::kReadWrite, kStream, OpKind::kNorm},
    {"aten::native_layer_norm_backward", Traffic::kGradient, kStream, OpKind::kNorm},
    {"aten::neg", Traffic::kPointwise, kStream, OpKind::kRope},
    {"aten::pow", Traffic::kPointwise, kStream, OpKind::kNorm},
    {"aten::rsqrt", Traffic::kPointwise, kStream, OpKind::kNorm},
    {"aten::sigmoid", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::silu", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::silu_backward", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::sub", Traffic::kPointwise, kStream, kAnyWork},
    {"aten::sum", Traffic::kReadAll, kStream, kAnyWork},
    {"aten::tanh", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::zero_", Traffic::kWriteFirst, kStream, OpKind::kZero},
    {"fsdp::all_gather_copy_in", Traffic::kFirstTwice, MemoryClass::kCopy, OpKind::kCopyIn},
    {"fsdp::chunk_cat", Traffic::kAllArguments, MemoryClass::kCopy, OpKind::kCopyIn},
    {"fsdp::split_with_sizes_copy", Traffic::kFirstTwice, MemoryClass::kCopy, OpKind::kCopyOut},
});
static_assert(std::is_sorted(kMemoryRules.begin(), kMemoryRules.end(),
                             [](const MemoryRule& a, const MemoryRule& b) {
                               return a.name < b.name;
                             }));

const MemoryRule* memory_rule(std::string_view name) {
  const auto* found = std::lower_bound(
      kMemoryRules.begin(), kMemoryRules.end(), name,
      [](const MemoryRule& rule, std::string_view wanted) { return rule.name < wanted; });
  if (found != kMemoryRules.end() && found->name == name) return found;
  static constexpr MemoryRule kTriton{"triton_", Traffic::kAllArguments, kStream, kAnyWork};
  // Generated kernels of torch.compile: pointwise, reductions, persistent reductions.
  for (const std::string_view prefix : {"triton_poi_", "triton_red_", "triton_per_"}) {
    if (name.starts_with(prefix)) return &kTriton;
  }
  return nullptr;
}

constexpr auto kGemms = std::to_array<std::string_view>(
    {"aten::_scaled_mm", "aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::bmm",
     "aten::linear", "aten::matmul", "aten::mm"});

std::int64_t rows_of(const TensorShape& shape) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.dims.size(); ++i) {
    if (shape.dims[i] != 0 && rows > (std::int64_t{1} << 40) / shape.dims[i]) return 0;
    rows *= shape.dims[i];
  }
  return rows;
}

std::optional<OperatorWork> product(const TensorShape& a, const TensorShape& b) {
  OperatorWork result;
  Work& work = result.work;
  work.kind = WorkKind::kGemm;
  if (a.dims.size() < 2 || b.dims.size() < 2) return std::nullopt;
  work.k = last_of(a.dims, "a shape");
  if (b.dims[b.dims.size() - 2] != work.k) return std::nullopt;
  work.n = last_of(b.dims, "a shape");
  if (b.dims.size() == 2) {
    work.m = rows_of(a);  // leading extents are more rows
  } else {
    work.m = a.dims[a.dims.size() - 2];
    result.batch = 1;
    for (std::size_t i = 0; i + 2 < b.dims.size(); ++i)
      result.batch *= std::max<std::int64_t>(1, b.dims[i]);
    if (result.batch > (1 << 24)) return std::nullopt;
  }
  work.dtype_bytes = static_cast<std::uint8_t>(a.element_bytes == 0 ? 2 : a.element_bytes);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const bool sound =
      work.m > 0 && work.n > 0 && work.k > 0 && work.m < kMost && work.n < kMost && work.k < kMost;
  return sound ? std::optional(result) : std::nullopt;
}

std::optional<OperatorWork> gemm(std::string_view name, const Arguments& arguments) {
  const std::size_t first =
      name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm";
  if (arguments.size() < first + 2 || !arguments[first].is_tensor() ||
      !arguments[first + 1].is_tensor()) {
    return std::nullopt;
  }
  const TensorShape& a = arguments[first].tensors[0];
  TensorShape b = arguments[first + 1].tensors[0];
  if (name == "aten::linear" && b.dims.size() == 2) std::swap(b.dims[0], b.dims[1]);
  return product(a, b);
}

/// Where an attention operator keeps q, and the order of its extents.
struct AttentionRule {
  std::string_view name;
  std::size_t query;  // index of the argument
  bool heads_first;   // [batch, heads, length, dim]; else [batch, length, heads, dim]
  bool backward;
  int causal;  // index of the argument that says so; -1: not recorded
};

constexpr auto kAttentions = std::to_array<AttentionRule>({
    {"aten::_scaled_dot_product_flash_attention", 0, true, false, 4},
    {"aten::_scaled_dot_product_flash_attention_backward", 1, true, true, -1},
    {"aten::_scaled_dot_product_cudnn_attention", 0, true, false, 6},
    {"aten::_scaled_dot_product_cudnn_attention_backward", 1, true, true, -1},
    {"aten::_scaled_dot_product_efficient_attention", 0, true, false, 6},
    {"aten::_scaled_dot_product_efficient_attention_backward", 1, true, true, -1},
    {"aten::_flash_attention_forward", 0, false, false, 8},
    {"aten::_flash_attention_backward", 1, false, true, -1},
    {"aten::_efficient_attention_forward", 0, false, false, -1},
    {"aten::_efficient_attention_backward", 1, false, true, -1},
    {"flash_attn::_flash_attn_forward", 0, false, false, 5},
    {"flash_attn::_flash_attn_backward", 1, false, true, -1},
    {"flash_attn_3::fwd", 0, false, false, -1},
    {"flash_attn_3::bwd", 1, false, true, -1},
    {"FlashAttnFunc", 0, false, false, -1},
    {"FlashAttnFuncBackward", 0, false, true, -1},
});

const AttentionRule* attention_rule(std::string_view name) {
  const auto* found = std::find_if(kAttentions.begin(), kAttentions.end(),
                                   [&](const AttentionRule& rule) { return rule.name == name; });
  return found != kAttentions.end() ? found : nullptr;
}

std::optional<OperatorWork> attention(const AttentionRule& rule, const Arguments& arguments) {
  if (arguments.size() <= rule.query || !arguments[rule.query].is_tensor()) return std::nullopt;
  const TensorShape& query = arguments[rule.query].tensors[0];
  if (query.dims.size() != 4) return std::nullopt;  // packed sequences have three extents
  const std::int64_t heads = query.dims[rule.heads_first ? 1 : 2];
  const std::int64_t length = query.dims[rule.heads_first ? 2 : 1];
  OperatorWork result;
  result.op = OpKind::kAttention;
  Work& work = result.work;
  work.kind = WorkKind::kAttention;
  work.backward = rule.backward;
  if (query.dims[0] <= 0 || heads <= 0 || query.dims[0] > (1 << 30) || heads > (1 << 20))
    return std::nullopt;
  work.m = query.dims[0] * heads;
  work.n = length;
  work.k = query.dims[3];
  work.dtype_bytes = static_cast<std::uint8_t>(query.element_bytes == 0 ? 2 : query.element_bytes);
  if (rule.causal >= 0 && static_cast<std::size_t>(rule.causal) < arguments.size()) {
    const std::string& value = arguments[static_cast<std::size_t>(rule.causal)].value;
    if (value == "False" || value == "false" || value == "0") work.causal = false;
  }
  const bool sound =
      work.m > 0 && work.n > 0 && work.k > 0 && work.n < (1 << 28) && work.k < (1 << 20);
  return sound ? std::optional(result) : std::nullopt;
}

/// Bytes of tensors whose types are known; the shape that all broadcast to, in the widest type.
struct Totals {
  double bytes = 0, largest = 0, broadcast = 0;
  bool complete = true;
  int tensors = 0;
};

Totals totals_of(const Arguments& arguments) {
  Totals totals;
  std::vector<std::int64_t> broadcast;
  int width = 0;
  for (const Argument& argument : arguments) {
    double list_bytes = 0;
    for (const TensorShape& tensor : argument.tensors) {
      if (tensor.element_bytes == 0) totals.complete = false;
      list_bytes += tensor.bytes();
      ++totals.tensors;
      if (argument.is_list) continue;
      // A scalar tensor does not promote the type.
      if (!tensor.dims.empty()) width = std::max(width, tensor.element_bytes);
      if (tensor.dims.size() > broadcast.size()) {
        broadcast.insert(broadcast.begin(), tensor.dims.size() - broadcast.size(), 1);
      }
      const std::size_t shift = broadcast.size() - tensor.dims.size();
      for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
        broadcast[shift + i] = std::max(broadcast[shift + i], tensor.dims[i]);
      }
    }
    totals.bytes += list_bytes;
    totals.largest = std::max(totals.largest, list_bytes);
  }
  TensorShape out;
  out.dims = broadcast;
  out.element_bytes = width;
  totals.broadcast = out.bytes();
  return totals;
}

std::optional<OperatorWork> memory(const MemoryRule& rule, const Arguments& arguments) {
  const Totals totals = totals_of(arguments);
  if (totals.tensors == 0 || !totals.complete || arguments[0].tensors.empty()) return std::nullopt;
  OperatorWork result;
  result.op = rule.op;
  Work& work = result.work;
  work.kind = WorkKind::kMemory;
  work.memory_class = rule.memory_class;
  double first = 0;
  for (const TensorShape& tensor : arguments[0].tensors) first += tensor.bytes();
  double bytes = totals.bytes;
  switch (rule.traffic) {
    case Traffic::kPointwise:
      bytes += totals.broadcast;
      break;
    case Traffic::kBroadcastOut:
      bytes += first;
      break;
    case Traffic::kCopy:
      if (arguments.size() < 2 || !arguments[0].is_tensor() || !arguments[1].is_tensor()) {
        return std::nullopt;
      }
      // A broadcast source is read once.
      bytes = first + arguments[1].tensors[0].bytes();
      if (arguments[0].tensors[0].element_bytes != arguments[1].tensors[0].element_bytes) {
        work.memory_class = MemoryClass::kCast;
      }
      break;
    case Traffic::kReadAll:
    case Traffic::kAllArguments:
      break;
    case Traffic::kReadWrite:
      bytes += first;
      break;
    case Traffic::kGradient:
    case Traffic::kLists:
      bytes += totals.largest;
      break;
    case Traffic::kFirstTwice:
      bytes = 2 * first;
      break;
    case Traffic::kWriteFirst:
      bytes = first;
      break;
    case Traffic::kInPlaceLists:
      bytes += first;
      break;
    case Traffic::kAdam: {
      // parameters, gradients, two moments: all are read, all but the gradients written.
      double written = first;
      for (std::size_t i = 2; i < std::min<std::size_t>(arguments.size(), 4); ++i) {
        for (const TensorShape& tensor : arguments[i].tensors) written += tensor.bytes();
      }
      bytes += written;
      break;
    }
  }
  if (!(bytes > 0 && bytes < 1e15)) return std::nullopt;
  work.bytes = static_cast<std::int64_t>(bytes);
  return result;
}

}  // namespace

OperatorClass class_of(std::string_view name) {
  if (std::find(kGemms.begin(), kGemms.end(), name) != kGemms.end()) return OperatorClass::kGemm;
  if (attention_rule(name) != nullptr) return OperatorClass::kAttention;
  return memory_rule(name) != nullptr ? OperatorClass::kMemory : OperatorClass::kUnknown;
}

bool only_forward(std::string_view name) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"aten::linear", "aten::silu", "aten::gelu", "aten::rms_norm", "aten::layer_norm",
       "aten::scaled_dot_product_attention", "aten::embedding", "FlashAttnFunc"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::optional<OperatorWork> work_of(std::string_view name, const Arguments& arguments) {
  if (arguments.empty()) return std::nullopt;
  if (const AttentionRule* rule = attention_rule(name)) return attention(*rule, arguments);
  if (const MemoryRule* rule = memory_rule(name)) return memory(*rule, arguments);
  return class_of(name) == OperatorClass::kGemm ? gemm(name, arguments) : std::nullopt;
}

std::string_view kernel_family(std::string_view kernel) {
  const auto any = [&](std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return contains(kernel, part); });
  };
  if (kernel.starts_with("nccl")) return "collective";
  if (any({"flash_fwd", "flash_bwd", "fmha", "flash::", "sdpa", "FlashAttn"})) return "attention";
  if (contains(kernel, "fbgemm")) return "other";
  if (any({"gemm", "nvjet", "splitKreduce", "gemv", "cublasLt", "s16816", "s1688"})) {
    return "GEMM";
  }
  if (any({"multi_tensor_apply", "FusedAdam", "fused_adam"})) return "optimizer";
  if (any({"conv", "wgrad", "dgrad", "fprop", "winograd", "fft2d", "bn_fw", "bn_bw", "nchw"})) {
    return "convolution";
  }
  if (any({"elementwise", "copy_kernel", "CatArray", "reduce_kernel", "Memcpy", "Memset",
           "layer_norm", "rms_norm", "softmax", "triton_"})) {
    return "copy, element-wise or reduction";
  }
  return "other";
}

namespace {

bool same_shapes(const TensorShape& a, const TensorShape& b) {
  return a.dims == b.dims && a.element_bytes == b.element_bytes;
}

}  // namespace

std::optional<OpKind> operation_in(const Model& model, std::string_view name,
                                   const std::vector<Argument>& arguments) {
  const TensorShape* largest = nullptr;
  for (const Argument& argument : arguments) {
    if (!argument.is_tensor()) continue;
    const TensorShape& shape = argument.tensors[0];
    if (largest == nullptr || shape.elements() > largest->elements()) largest = &shape;
  }
  if (largest == nullptr || largest->dims.size() < 2) return std::nullopt;
  const std::int64_t last = largest->dims[largest->dims.size() - 1];
  // [batch, length, heads, dim], its complex half, or pairs of it.
  if (largest->dims.size() >= 4) {
    const bool heads = last == model.head_dim || 2 * last == model.head_dim || last == 2;
    return heads ? std::optional(OpKind::kRope) : std::nullopt;
  }
  if (last == model.vocab) return OpKind::kLoss;
  if (last == model.ffn || last == 2 * model.ffn) {
    return last == model.hidden ? std::nullopt : std::optional(OpKind::kActivation);
  }
  // Statistics of rows: one number each.
  if (last == 1 && largest->dims.size() == 3) return OpKind::kNorm;
  if (last != model.hidden) return std::nullopt;
  const bool adds = name == "aten::add" || name == "aten::add_";
  if (adds && arguments.size() >= 2 && arguments[0].is_tensor() && arguments[1].is_tensor() &&
      same_shapes(arguments[0].tensors[0], arguments[1].tensors[0])) {
    // Norms work in fp32 where the residual stream is half as wide.
    return largest->element_bytes <= 2 ? OpKind::kResidual : OpKind::kNorm;
  }
  return OpKind::kNorm;
}

std::optional<OpKind> collective_of(std::string_view name) {
  if (name.starts_with("nccl:")) name.remove_prefix(5);
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain += c;
  }
  const auto begins = [&](std::string_view with) { return plain.starts_with(with); };
  if (begins("allgather")) return OpKind::kAllGather;
  if (begins("reducescatter")) return OpKind::kReduceScatter;
  if (begins("allreduce")) return OpKind::kAllReduce;
  if (begins("broadcast")) return OpKind::kBroadcast;
  return std::nullopt;
}

std::vector<std::int64_t> ranks_of(std::string_view text) {
  const auto list = parse_json(text, false);
  std::vector<std::int64_t> ranks;
  if (!list.is_array()) return ranks;
  for (const auto& rank : list) {
    if (!rank.is_number_integer()) return {};
    ranks.push_back(rank.get<std::int64_t>());
  }
  return ranks;
}

std::int64_t nodes_of(const std::vector<std::int64_t>& ranks, std::int64_t group_size,
                      std::int64_t gpus_per_node) {
  if (gpus_per_node <= 0) return 1;
  if (ranks.empty()) return std::max<std::int64_t>(1, ceil_div(group_size, gpus_per_node));
  std::set<std::int64_t> nodes;
  for (const std::int64_t rank : ranks) nodes.insert(rank / gpus_per_node);
  return static_cast<std::int64_t>(nodes.size());
}

namespace {

constexpr int kDeepest = 64;  // hostile nesting must not cost a walk per kernel
constexpr std::string_view kEvaluate = "autograd::engine::evaluate_function: ";
constexpr std::string_view kStepName = "ProfilerStep#";

}  // namespace

RangeWalk::RangeWalk(const TraceTables& tables) : tables_(tables) {
  marks_.resize(tables.names.size());
  for (NameId id = 0; id < marks_.size(); ++id) {
    const std::string_view name = tables.names.text(id);
    int mark = 0;
    if (class_of(name) != OperatorClass::kUnknown) mark |= kKnownOperator;
    if (name.starts_with(kEvaluate)) mark |= kAutograd;
    if (name.starts_with(kEvaluate) && name.find("CheckpointFunctionBackward") != name.npos) {
      mark |= kCheckpoint;
    }
    if (name.starts_with("Optimizer.") || name.find("clip_grad_norm") != name.npos)
      mark |= kOptimizerStep;
    if (only_forward(name)) mark |= kOnlyForward;
    if (name.starts_with("FSDP::") || name.starts_with("FullyShardedDataParallel.")) mark |= kFsdp;
    if (name == "record_param_comms" || name.starts_with("nccl:")) mark |= kCollective;
    marks_[id] = static_cast<std::uint8_t>(mark);
  }
  for (const HostRange& range : tables.ranges) {
    const std::string_view name = tables.names.text(range.name);
    if (!name.starts_with(kStepName)) continue;
    const auto number = integer_of(name.substr(kStepName.size()));
    if (!number || *number < 0 || *number > (1 << 30)) continue;
    steps_.push_back({range.begin, range.end, static_cast<std::int32_t>(*number)});
  }
  std::sort(steps_.begin(), steps_.end(),
            [](const Step& a, const Step& b) { return a.begin < b.begin; });
}

std::uint32_t RangeWalk::owner(std::uint32_t range) const {
  for (int i = 0; i < kDeepest && range != kNoIndex; ++i, range = tables_.ranges[range].parent) {
    if ((marks(range) & kKnownOperator) != 0) return range;
    if ((marks(range) & kAutograd) != 0) break;
  }
  return kNoIndex;
}

Phase RangeWalk::phase(std::uint32_t range) const {
  bool forward_again = false;
  for (int i = 0; i < kDeepest && range != kNoIndex; ++i, range = tables_.ranges[range].parent) {
    const int mark = marks(range);
    if ((mark & kOnlyForward) != 0) forward_again = true;
    if ((mark & kAutograd) != 0) {
      return forward_again || (mark & kCheckpoint) != 0 ? Phase::kRecompute : Phase::kBackward;
    }
    if ((mark & kOptimizerStep) != 0) return Phase::kOptimizer;
  }
  return Phase::kForward;
}

std::uint32_t RangeWalk::collective_range(std::uint32_t range) const {
  std::uint32_t named = kNoIndex;
  for (int i = 0; i < kDeepest && range != kNoIndex; ++i, range = tables_.ranges[range].parent) {
    if ((marks(range) & kCollective) == 0) continue;
    if (tables_.ranges[range].comm != kNoIndex) return range;
    // Older traces: the annotation has a telling name and the shapes, its neighbours have not.
    if (tables_.names.text(tables_.ranges[range].name) != "record_param_comms") named = range;
  }
  return named;
}

std::string RangeWalk::unit(std::uint32_t range) const {
  for (int i = 0; i < kDeepest && range != kNoIndex; ++i, range = tables_.ranges[range].parent) {
    if ((marks(range) & kFsdp) == 0) continue;
    const std::string& name = tables_.names.text(tables_.ranges[range].name);
    const std::size_t open = name.find('(');
    if (open == std::string::npos || !name.ends_with(')')) continue;
    return name.substr(open + 1, name.size() - open - 2);
  }
  return {};
}

bool RangeWalk::inside_fsdp(std::uint32_t range) const {
  // FSDP1 wraps whole forward passes in annotations of its own; hooks are those of "FSDP::".
  for (int i = 0; i < kDeepest && range != kNoIndex; ++i, range = tables_.ranges[range].parent) {
    if (tables_.names.text(tables_.ranges[range].name).starts_with("FSDP::")) return true;
  }
  return false;
}

std::int32_t RangeWalk::step(Nanoseconds host_time) const {
  if (steps_.empty()) return 0;
  const auto after = std::partition_point(
      steps_.begin(), steps_.end(), [&](const Step& step) { return step.begin <= host_time; });
  if (after == steps_.begin() || (after - 1)->end <= host_time) return -1;
  return (after - 1)->number;
}

std::vector<double> RangeWalk::step_seconds() const {
  std::vector<double> list;
  for (const Step& step : steps_) list.push_back(static_cast<double>(step.end - step.begin) * 1e-9);
  return list;
}

}  // namespace shardwright::profiles
