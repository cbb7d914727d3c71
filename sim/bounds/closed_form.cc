// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/closed_form.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/base/check.h"

namespace shardwright::sim {

// One walk over the schedule in host order, in which every operation inherits what is known of
// those it waits for: after which cut it completes, how long after, and how many operations of each
// stream are complete by then (Knowledge). Events and stream order are all the dependencies there
// are, so what is inherited through them holds in every execution; what is not, might not.
//
// A cut is the last operation of forward, of backward, and so on, of the compute stream. Operations
// of another stream certainly lie in the stretch between two cuts when they start after the first
// (they have inherited it) and the second has inherited their completion. Most operations cannot
// change what is known: plain compute kernels between two that wait or record are passed over
// (Stop). Of the micro-batches of an accumulation the first and the second are walked; the second
// stands for the others.

namespace {

constexpr std::size_t kStreams = 8;
using Positions = std::array<std::int32_t, kStreams>;  // operations of each stream, from the front

/// What is known about the completion of an operation.
struct Knowledge {
  std::int32_t phase = 0;        // it completes after the cut that begins this phase ...
  Nanoseconds since_cut_ns = 0;  // ... and at least so much later
  Positions done{};              // operations that have completed by then

  void join(const Knowledge& other, std::size_t streams) {
    if (other.phase > phase) {
      phase = other.phase;
      since_cut_ns = other.since_cut_ns;
    } else if (other.phase == phase) {
      since_cut_ns = std::max(since_cut_ns, other.since_cut_ns);
    }
    for (std::size_t s = 1; s < streams; ++s) done[s] = std::max(done[s], other.done[s]);
  }
};

/// An operation of a block that the walk must look at: all but plain compute.
struct Stop {
  std::uint32_t op;
  Nanoseconds host_ns;  // of it and of what the host issues before it
  bool kernel_before;   // plain compute kernels lie between it and the stop before
  bool last_compute;    // the last compute operation of its block
};

struct StopList {
  std::vector<Stop> stops;
  bool kernel_after = false;  // plain compute kernels follow the last stop
};

/// The operations of a stream other than compute, in stream order.
struct StreamLog {
  std::vector<Nanoseconds> collective{0}, kernel{0};  // time up to the n-th
  std::vector<std::uint32_t> ops;
  std::int32_t count() const { return static_cast<std::int32_t>(ops.size()); }
  void add(std::uint32_t op, Nanoseconds alone_ns, bool is_collective) {
    collective.push_back(collective.back() + (is_collective ? alone_ns : 0));
    kernel.push_back(kernel.back() + (is_collective ? 0 : alone_ns));
    ops.push_back(op);
  }
  void clear() {
    collective.resize(1);
    kernel.resize(1);
    ops.clear();
  }
};

void add(std::vector<KernelCount>& list, const KernelCount& more) {
  for (KernelCount& known : list) {
    if (known.alone_ns == more.alone_ns && known.contended_ns == more.contended_ns) {
      known.count += more.count;
      known.per_layer += more.per_layer;
      return;
    }
  }
  list.push_back(more);
}

void add_side_kernel(std::vector<KernelCount>& side, const OpCost& cost, std::int64_t count) {
  if (cost.alone_ns > 0) add(side, {cost.alone_ns, cost.contended_ns, count});
}

bool is_collective(const Op& op) {
  return op.work.kind == WorkKind::kCollective;
}

}  // namespace

/// What a walk may keep for the next one.
struct StretchFinder::Buffers {
  std::vector<std::int32_t> events;  // by name and unit: index into records
  std::vector<Knowledge> records;
  std::vector<StreamLog> logs;  // by stream
};

namespace {

class StretchWalk {
 public:
  StretchWalk(const Schedule& schedule, const std::vector<OpCost>& costs,
              StretchFinder::Buffers& buffers)
      : schedule_(schedule),
        costs_(costs),
        units_(schedule.units()),
        events_(buffers.events),
        records_(buffers.records),
        logs_(buffers.logs) {
    records_.clear();
    for (StreamLog& log : logs_) log.clear();
    SHARDWRIGHT_CHECK(schedule.streams.size() <= kStreams, "{} streams", schedule.streams.size());
    logs_.resize(schedule.streams.size());
    next_begin_.fill(-1);
    last_of_stream_.resize(schedule.streams.size());
    events_.assign(schedule.event_names.size() * static_cast<std::size_t>(units_), -1);
    for (const Block& block : schedule.blocks) lists_.push_back(stops_of(block));
  }

  StepStretches run() {
    begin_phase();
    for (std::size_t s = 0; s < schedule_.sections.size(); ++s) {
      const Section& section = schedule_.sections[s];
      const std::int32_t walked = std::min(section.repeats, 2);
      for (std::int32_t rep = 0; rep < walked; ++rep) {
        const std::int64_t times = rep == 1 ? section.repeats - 1 : 1;
        for (std::uint32_t b = 0; b < section.block_count; ++b) {
          const std::uint32_t block = section.first_block + b;
          const int group = group_of(schedule_.blocks[block].phase);
          if (group != group_ && (group == 1 || group_ == 1)) begin_phase();
          group_ = group;
          if (group != 2) phases_.back().times = times;
          visit(block, ends_phase(s, b, rep + 1 == walked));
        }
      }
    }
    end_phase();
    return stretches();
  }

 private:
  struct PhaseRecord {
    std::vector<BlockRange> blocks;
    std::int64_t times = 1;
    Positions begin{};  // first operation of each stream that certainly starts after the cut
    Positions end{};    // operations that have certainly completed at the next cut
    Nanoseconds lead_ns = -1;
  };

  StopList stops_of(const Block& block) const {
    StopList list;
    std::uint32_t last_compute = block.first_op + block.op_count;
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (schedule_.ops[i].stream == 0 && schedule_.ops[i].work.kind != WorkKind::kHost)
        last_compute = i;
    }
    Nanoseconds host_ns = 0;
    bool kernel = false;
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      const Op& op = schedule_.ops[i];
      if (!op.host_waits) host_ns += costs_[i].host_ns;
      if (op.work.kind == WorkKind::kHost) continue;
      const bool waits = std::any_of(std::begin(op.waits), std::end(op.waits),
                                     [](const EventRef& wait) { return bool(wait); });
      if (op.stream == 0 && !op.record && !waits && i != last_compute) {
        kernel = kernel || costs_[i].alone_ns > 0;
        continue;
      }
      list.stops.push_back({i, host_ns, kernel, i == last_compute});
      host_ns = 0;
      kernel = false;
    }
    list.kernel_after = kernel;
    return list;
  }

  /// Forward ends where backward begins; backward ends where anything else begins.
  static int group_of(Phase phase) {
    return phase == Phase::kForward ? 0 : phase == Phase::kBackward ? 1 : 2;
  }
  bool ends_phase(std::size_t section, std::uint32_t block, bool last_rep) const {
    const Section& s = schedule_.sections[section];
    const int group = group_of(schedule_.blocks[s.first_block + block].phase);
    if (group == 2) return false;
    if (block + 1 < s.block_count)
      return group_of(schedule_.blocks[s.first_block + block + 1].phase) != group;
    if (!last_rep) return group_of(schedule_.blocks[s.first_block].phase) != group;
    for (std::size_t next = section + 1; next < schedule_.sections.size(); ++next) {
      const Section& after = schedule_.sections[next];
      if (after.block_count > 0)
        return group_of(schedule_.blocks[after.first_block].phase) != group;
    }
    return false;
  }

  std::int32_t phase() const { return static_cast<std::int32_t>(phases_.size()) - 1; }

  void begin_phase() {
    if (!phases_.empty()) end_phase();
    phases_.emplace_back().begin = next_begin_;
    next_begin_.fill(-1);
    // What was last issued to the compute stream is the cut.
    if (last_of_stream_[0].phase < phase()) {
      last_of_stream_[0].phase = phase();
      last_of_stream_[0].since_cut_ns = 0;
    }
  }

  void end_phase() {
    PhaseRecord& ended = phases_.back();
    ended.end = last_of_stream_[0].done;
    for (std::size_t s = 0; s < logs_.size(); ++s) {
      if (ended.begin[s] < 0) ended.begin[s] = logs_[s].count();
    }
  }

  void visit(std::uint32_t b, bool ends) {
    const Block& block = schedule_.blocks[b];
    std::vector<BlockRange>& ranges = phases_.back().blocks;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == b) {
      ++ranges.back().count;
    } else {
      ranges.push_back({b, 1});
    }
    for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
      const std::int32_t unit = block.first_unit + rep * block.unit_step;
      for (const Stop& stop : lists_[b].stops)
        issue(stop, unit, ends && stop.last_compute && rep + 1 == block.repeats);
      if (lists_[b].kernel_after) note_lead(last_of_stream_[0]);
    }
  }

  std::int32_t* slot(EventRef event, std::int32_t unit) {
    const std::int32_t at = unit + event.offset;
    if (at < 0 || at >= units_) return nullptr;
    return &events_[static_cast<std::size_t>(event.name) * static_cast<std::size_t>(units_) +
                    static_cast<std::size_t>(at)];
  }

  /// The first compute kernel of the phase starts after what `known` says.
  void note_lead(const Knowledge& known) {
    PhaseRecord& current = phases_.back();
    if (current.lead_ns >= 0) return;
    current.lead_ns = known.phase == phase() ? known.since_cut_ns : 0;
    if (phase() == 0) current.lead_ns = std::max(current.lead_ns, host_ns_);
  }

  void issue(const Stop& stop, std::int32_t unit, bool is_cut) {
    const Op& op = schedule_.ops[stop.op];
    const OpCost& cost = costs_[stop.op];
    if (op.stream == 0 && stop.kernel_before) note_lead(last_of_stream_[0]);
    host_ns_ += stop.host_ns;
    Knowledge& known = last_of_stream_[op.stream];
    for (const EventRef& wait : op.waits) {
      if (!wait) continue;
      const std::int32_t* recorded = slot(wait, unit);
      if (recorded != nullptr && *recorded >= 0)
        known.join(records_[static_cast<std::size_t>(*recorded)], logs_.size());
    }
    if (phase() == 0 && known.phase == 0)
      known.since_cut_ns = std::max(known.since_cut_ns, host_ns_);
    if (op.stream == 0) {
      if (cost.alone_ns > 0) note_lead(known);
      if (is_cut) {
        known.phase = phase() + 1;
        known.since_cut_ns = 0;
      }
    } else {
      note_begin(op.stream, known.phase);
      const Nanoseconds beside_ns = op.in_line() ? 0 : cost.alone_ns;
      logs_[op.stream].add(stop.op, beside_ns, is_collective(op));
      known.since_cut_ns += beside_ns;
      known.done[op.stream] = logs_[op.stream].count();
    }
    if (op.record) {
      if (std::int32_t* recorded = slot(op.record, unit)) {
        *recorded = static_cast<std::int32_t>(records_.size());
        records_.push_back(known);
      }
    }
  }

  /// The next operation of the stream, and by stream order all further ones, start after the cut
  /// that begins phase `after`.
  void note_begin(std::size_t stream, std::int32_t after) {
    const std::int32_t next = logs_[stream].count();
    if (after > phase() && next_begin_[stream] < 0) next_begin_[stream] = next;
    for (std::int32_t p = std::min(after, phase()); p >= 0; --p) {
      std::int32_t& begin = phases_[static_cast<std::size_t>(p)].begin[stream];
      if (begin >= 0) return;
      begin = next;
    }
  }

  Stretch stretch(const Positions& begin, const Positions& end, std::size_t first_phase,
                  std::size_t phase_count) const {
    Stretch result;
    std::size_t main = 0;
    for (std::size_t s = 1; s < logs_.size(); ++s) {
      if (end[s] <= begin[s]) continue;
      const auto within = [&](const std::vector<Nanoseconds>& sums) {
        return sums[static_cast<std::size_t>(end[s])] - sums[static_cast<std::size_t>(begin[s])];
      };
      const Nanoseconds kernel = within(logs_[s].kernel);
      if (take_stream(result, within(logs_[s].collective), kernel)) main = s;
    }
    for (std::size_t s = 1; s < logs_.size(); ++s) {
      if (s == main) continue;
      for (std::int32_t i = begin[s]; i < end[s]; ++i) {
        const std::uint32_t op = logs_[s].ops[static_cast<std::size_t>(i)];
        if (!is_collective(schedule_.ops[op])) add_side_kernel(result.side, costs_[op], 1);
      }
    }
    for (std::size_t p = first_phase; p < first_phase + phase_count; ++p) {
      for (const BlockRange& range : phases_[p].blocks) result.blocks.push_back(range);
    }
    result.lead_ns = std::max<Nanoseconds>(0, phases_[first_phase].lead_ns);
    return result;
  }

  /// Whether the stream is the one with most collective time so far.
  static bool take_stream(Stretch& stretch, Nanoseconds collective, Nanoseconds kernel) {
    stretch.busiest_ns = std::max(stretch.busiest_ns, collective + kernel);
    if (collective <= stretch.collective_ns) return false;
    stretch.collective_ns = collective;
    stretch.kernels_beside_ns = kernel;
    return true;
  }

  /// Everything, also the micro-batches that were not walked.
  Stretch whole() const {
    Stretch result;
    std::array<Nanoseconds, kStreams> collective{}, kernel{};
    const auto for_each = [&](auto&& f) {
      for (const Section& section : schedule_.sections) {
        for (const Block& block : schedule_.blocks_of(section)) {
          for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
            const Op& op = schedule_.ops[i];
            if (op.stream != 0 && op.work.kind != WorkKind::kHost)
              f(i, op, std::int64_t{block.repeats} * section.repeats);
          }
        }
      }
    };
    for_each([&](std::uint32_t i, const Op& op, std::int64_t times) {
      if (op.in_line()) return;
      (is_collective(op) ? collective : kernel)[op.stream] += times * costs_[i].alone_ns;
    });
    std::size_t main = 0;
    for (std::size_t s = 1; s < logs_.size(); ++s) {
      if (take_stream(result, collective[s], kernel[s])) main = s;
    }
    for_each([&](std::uint32_t i, const Op& op, std::int64_t times) {
      if (op.stream != main && !is_collective(op)) add_side_kernel(result.side, costs_[i], times);
    });
    for (const Section& section : schedule_.sections)
      result.blocks.push_back({section.first_block, section.block_count, section.repeats});
    result.lead_ns = std::max<Nanoseconds>(0, phases_.front().lead_ns);
    return result;
  }

  StepStretches stretches() const {
    StepStretches result;
    Positions everything{};
    for (std::size_t s = 0; s < logs_.size(); ++s) everything[s] = logs_[s].count();
    const std::size_t count = phases_.size();
    for (std::size_t p = 0; p < count; ++p) {
      const Positions& end = p + 1 == count ? everything : phases_[p].end;
      result.phases.push_back(stretch(phases_[p].begin, end, p, 1));
      result.phases.back().times = phases_[p].times;
    }
    if (count >= 2) result.last_two = stretch(phases_[count - 2].begin, everything, count - 2, 2);
    result.whole = whole();
    return result;
  }

  const Schedule& schedule_;
  const std::vector<OpCost>& costs_;
  std::int32_t units_;
  std::vector<std::int32_t>& events_;
  std::vector<Knowledge>& records_;
  std::vector<StreamLog>& logs_;
  int group_ = 2;
  Nanoseconds host_ns_ = 0;
  std::vector<StopList> lists_;  // by block
  std::vector<PhaseRecord> phases_;
  Positions next_begin_{};  // of the phase that the last cut begins
  std::vector<Knowledge> last_of_stream_;
};

}  // namespace

StretchFinder::StretchFinder() : buffers_(std::make_unique<Buffers>()) {}
StretchFinder::~StretchFinder() = default;

StepStretches StretchFinder::find(const Schedule& schedule, const std::vector<OpCost>& costs) {
  return StretchWalk(schedule, costs, *buffers_).run();
}

// What this file buys. The ten best of the 92,256 plans of
// search/llama_3_70b (tests/bench/tuner_bench.cc) take 494 simulations and 0.12 s of processor
// time. With a bound that knows only the busiest stream, the host and the sum of compute kernels
// (the line `bound` of bound_ns as the largest of whole_.compute_ns, whole_.busiest_ns and
// host_ns_) they take 3,254 simulations and 0.34 s; on the eager stack 298 become 476. Where the
// space has one plan a family (llama_3_70b_one_each) or one plan stands out (llama_3_1_405b)
// nothing changes. `size` searches dozens of such spaces. That is what this much code has to be
// worth; if the event simulation becomes three times as fast, it no longer is.
//
// How it works: kernels of the compute stream are counted by cost, once per run of blocks, with and
// without checkpoints. The difference per layer makes each count a line in the number of
// checkpointed layers, so a bound for k layers is a few multiplications. Kernels that a collective
// slows alike form a group; the bound lets collectives lie beside the groups that lose least.

namespace {

bool is_compute_kernel(const Op& op, const OpCost& cost) {
  return op.stream == 0 && cost.alone_ns > 0 && op.work.kind != WorkKind::kCollective &&
         op.work.kind != WorkKind::kHost;
}

}  // namespace

/// Holds what the constructor needs and the bound does not.
class ClosedTimeBuilder {
 public:
  using Line = ClosedTime::Line;
  using Part = ClosedTime::Part;
  using Group = ClosedTime::Group;

  ClosedTimeBuilder(const Schedule& none, const std::vector<OpCost>& none_costs,
                    const Schedule& all, const std::vector<OpCost>& all_costs)
      : none_(none), none_costs_(none_costs), all_(all), all_costs_(all_costs) {
    SHARDWRIGHT_CHECK(none.blocks.size() == all.blocks.size(),
                      "{} blocks without checkpoints, {} with", none.blocks.size(),
                      all.blocks.size());
  }

  void build(const StepStretches& stretches, ClosedTime& form) {
    find_runs();
    for (const Stretch& stretch : stretches.phases) {
      Part part = part_of(stretch);
      // Micro-batches are much alike.
      const auto same = std::find_if(form.phases_.begin(), form.phases_.end(),
                                     [&part](const Part& known) { return known.like(part); });
      if (same == form.phases_.end()) {
        form.phases_.push_back(std::move(part));
      } else {
        same->times += part.times;
      }
    }
    form.last_two_ = part_of(stretches.last_two);
    form.whole_ = part_of(stretches.whole);
    const std::size_t phases = stretches.phases.size();
    for (std::size_t p = phases - std::min<std::size_t>(phases, 2); p < phases; ++p)
      form.separate_.push_back(part_of(stretches.phases[p]));
    for (const Section& section : none_.sections) add_host(form, section);
  }

 private:
  /// Neighbouring blocks of one phase, the passes of layers among them.
  struct Run {
    std::uint32_t first = 0, end = 0;
    std::vector<KernelCount> kernels{};
    Line host_ns{}, in_line_ns{};
  };

  bool is_layer(const Block& block) const {
    return block.first_unit >= 1 && block.first_unit <= none_.layers &&
           (block.phase == Phase::kForward || block.phase == Phase::kBackward);
  }

  static void add_block(std::vector<KernelCount>& list, const Schedule& schedule,
                        const std::vector<OpCost>& costs, std::uint32_t b, std::int64_t count,
                        std::int64_t per_layer) {
    const Block& block = schedule.blocks[b];
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (is_compute_kernel(schedule.ops[i], costs[i]))
        add(list, {costs[i].alone_ns, costs[i].contended_ns, count, per_layer});
    }
  }

  static double host_of(const Schedule& schedule, const std::vector<OpCost>& costs,
                        std::uint32_t b) {
    const Block& block = schedule.blocks[b];
    Nanoseconds host = 0;
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (!schedule.ops[i].host_waits) host += costs[i].host_ns;
    }
    return static_cast<double>(host);
  }

  /// Of operations in line that the same block's kernels wait for; others may be the next
  /// stretch's.
  static double in_line_of(const Schedule& schedule, const std::vector<OpCost>& costs,
                           std::uint32_t b) {
    const Block& block = schedule.blocks[b];
    Nanoseconds in_line = 0;
    bool is_followed = false;
    for (std::uint32_t i = block.first_op + block.op_count; i-- > block.first_op;) {
      const Op& op = schedule.ops[i];
      is_followed |= op.stream == 0 && op.work.kind != WorkKind::kHost;
      if (op.in_line() && is_followed) in_line += costs[i].alone_ns;
    }
    return static_cast<double>(in_line);
  }

  void find_runs() {
    run_of_.resize(none_.blocks.size());
    for (const Section& section : none_.sections) {
      const std::uint32_t end = section.first_block + section.block_count;
      for (std::uint32_t b = section.first_block; b < end; ++b) {
        const bool starts =
            b == section.first_block || none_.blocks[b].phase != none_.blocks[b - 1].phase;
        if (starts) runs_.push_back({.first = b});
        runs_.back().end = b + 1;
        run_of_[b] = runs_.size() - 1;
      }
    }
    for (Run& run : runs_) {
      std::int64_t most = 0;
      std::uint32_t layer = run.end;  // the block of layers that repeats most stands for all
      for (std::uint32_t b = run.first; b < run.end; ++b) {
        const std::int64_t repeats = none_.blocks[b].repeats;
        add_block(run.kernels, none_, none_costs_, b, repeats, 0);
        run.host_ns.at_none += static_cast<double>(repeats) * host_of(none_, none_costs_, b);
        run.in_line_ns.at_none += static_cast<double>(repeats) * in_line_of(none_, none_costs_, b);
        if (is_layer(none_.blocks[b]) && repeats > most) {
          most = repeats;
          layer = b;
        }
      }
      if (layer == run.end) continue;
      add_block(run.kernels, all_, all_costs_, layer, 0, 1);
      add_block(run.kernels, none_, none_costs_, layer, 0, -1);
      run.host_ns.per_layer = host_of(all_, all_costs_, layer) - host_of(none_, none_costs_, layer);
      run.in_line_ns.per_layer =
          in_line_of(all_, all_costs_, layer) - in_line_of(none_, none_costs_, layer);
    }
  }

  std::vector<KernelCount> compute_kernels(const Stretch& stretch, Line& in_line_ns) const {
    std::vector<KernelCount> list;
    for (const BlockRange& range : stretch.blocks) {
      for (std::uint32_t b = range.first; b < range.first + range.count;) {
        const Run& run = runs_[run_of_[b]];
        SHARDWRIGHT_CHECK(b == run.first, "a stretch begins within a run of blocks");
        for (const KernelCount& kernels : run.kernels) {
          add(list, {kernels.alone_ns, kernels.contended_ns, kernels.count * range.times,
                     kernels.per_layer * range.times});
        }
        const auto times = static_cast<double>(range.times);
        in_line_ns.at_none += times * run.in_line_ns.at_none;
        in_line_ns.per_layer += times * run.in_line_ns.per_layer;
        b = run.end;
      }
    }
    return list;
  }

  static std::vector<Group> groups_of(std::vector<KernelCount>& list) {
    std::sort(list.begin(), list.end(), [](const KernelCount& a, const KernelCount& b) {
      return static_cast<double>(a.alone_ns) * static_cast<double>(b.contended_ns) >
             static_cast<double>(b.alone_ns) * static_cast<double>(a.contended_ns);
    });
    std::vector<Group> groups;
    for (const KernelCount& kernels : list) {
      if (kernels.count == 0 && kernels.per_layer == 0) continue;
      const double contended = static_cast<double>(kernels.contended_ns);
      const double rate = static_cast<double>(kernels.alone_ns) / contended;
      // Of nearly the same rate: one group at the better one.
      if (groups.empty() || rate < groups.back().rate * 0.998) groups.push_back({rate, {}});
      groups.back().contended_ns.at_none += static_cast<double>(kernels.count) * contended;
      groups.back().contended_ns.per_layer += static_cast<double>(kernels.per_layer) * contended;
    }
    return groups;
  }

  Part part_of(const Stretch& stretch) const {
    Part part;
    part.times = static_cast<double>(stretch.times);
    part.collective_ns = static_cast<double>(stretch.collective_ns);
    part.beside_ns = static_cast<double>(stretch.kernels_beside_ns);
    part.busiest_ns = static_cast<double>(stretch.busiest_ns);
    part.lead_ns = static_cast<double>(stretch.lead_ns);
    std::vector<KernelCount> list = compute_kernels(stretch, part.in_line_ns);
    for (const KernelCount& kernels : list) {
      const double alone = static_cast<double>(kernels.alone_ns);
      part.compute_ns.at_none += alone * static_cast<double>(kernels.count);
      part.compute_ns.per_layer += alone * static_cast<double>(kernels.per_layer);
    }
    part.compute = groups_of(list);
    if (stretch.side.empty()) return part;
    for (const KernelCount& side : stretch.side) {
      part.side_ns += static_cast<double>(side.alone_ns * side.count);
      add(list, side);
    }
    part.compute_and_side = groups_of(list);
    return part;
  }

  void add_host(ClosedTime& form, const Section& section) const {
    const double times = section.repeats;
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      form.operations_ += times * none_.blocks[b].repeats * all_.blocks[b].op_count;
      const Run& run = runs_[run_of_[b]];
      if (b != run.first) continue;
      form.host_ns_.at_none += times * run.host_ns.at_none;
      form.host_ns_.per_layer += times * run.host_ns.per_layer;
    }
  }

  const Schedule& none_;
  const std::vector<OpCost>& none_costs_;
  const Schedule& all_;
  const std::vector<OpCost>& all_costs_;
  std::vector<Run> runs_;
  std::vector<std::size_t> run_of_;  // by block
};

namespace {

/// C - P(C): the work that kernels lose at least while collectives are resident for `resident_ns`.
template <class Groups>
double lost_ns(const Groups& groups, double resident_ns, double k) {
  double left = resident_ns;
  double lost = 0;
  for (const auto& group : groups) {
    const double time = std::min(left, std::max(0.0, group.contended_ns.at(k)));
    lost += time * (1 - group.rate);
    left -= time;
    if (left <= 0) return lost;
  }
  return lost + left;  // nothing runs beside the rest
}

}  // namespace

double ClosedTime::Part::bound_ns(double k) const {
  const double work = compute_ns.at(k);
  const std::vector<Group>& all = compute_and_side.empty() ? compute : compute_and_side;
  const double kernels = beside_ns + work + side_ns + lost_ns(all, collective_ns, k);
  // Beside what is in line no kernel of the compute stream runs.
  const double in_line = lead_ns + in_line_ns.at(k);
  const double behind = std::max(0.0, collective_ns - in_line);
  return std::max({busiest_ns, kernels, in_line + work + lost_ns(compute, behind, k)});
}

bool ClosedTime::Part::like(const Part& other) const {
  return collective_ns == other.collective_ns && beside_ns == other.beside_ns &&
         busiest_ns == other.busiest_ns && lead_ns == other.lead_ns && side_ns == other.side_ns &&
         compute_ns == other.compute_ns && in_line_ns == other.in_line_ns &&
         compute == other.compute && compute_and_side == other.compute_and_side;
}

ClosedTime::ClosedTime(const StepStretches& stretches, const Schedule& none,
                       const std::vector<OpCost>& none_costs, const Schedule& all,
                       const std::vector<OpCost>& all_costs) {
  ClosedTimeBuilder(none, none_costs, all, all_costs).build(stretches, *this);
}

Nanoseconds ClosedTime::bound_ns(std::int64_t count) const {
  const auto k = static_cast<double>(count);
  double sum = 0, separate = 0;
  for (const Part& phase : phases_) sum += phase.times * phase.bound_ns(k);
  for (const Part& phase : separate_) separate += phase.bound_ns(k);
  sum += std::max(0.0, last_two_.bound_ns(k) - separate);
  const double bound = std::max({sum, whole_.bound_ns(k), host_ns_.at(k)});
  // The engine rounds to whole nanoseconds wherever a kernel changes its rate.
  return static_cast<Nanoseconds>(std::max(0.0, std::floor(bound - 2 * operations_)));
}

}  // namespace shardwright::sim
