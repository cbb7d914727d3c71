// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/observe.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "profiles/import/collective_work.h"
#include "profiles/import/host_launches.h"
#include "profiles/import/model_operation.h"
#include "profiles/import/operator_work.h"
#include "profiles/import/range_walk.h"
#include "profiles/import/tensor_shapes.h"
#include "sim/core/base/ends.h"
#include "sim/core/base/span_union.h"

namespace shardwright::profiles {
namespace {

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

}  // namespace shardwright::profiles
