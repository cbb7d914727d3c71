// SPDX-License-Identifier: Apache-2.0
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
//
// closed_form.cc says what this is worth.
#include "sim/bounds/step_stretches.h"

#include <algorithm>
#include <array>

#include "sim/core/base/check.h"

namespace shardwright::sim {

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

void add_side_kernel(std::vector<SideKernel>& side, const OpCost& cost, std::int64_t count) {
  if (cost.alone_ns <= 0) return;
  for (SideKernel& known : side) {
    if (known.alone_ns == cost.alone_ns && known.contended_ns == cost.contended_ns) {
      known.count += count;
      return;
    }
  }
  side.push_back({cost.alone_ns, cost.contended_ns, count});
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
        for (std::uint32_t b = 0; b < section.block_count; ++b) {
          const Block& block = schedule_.blocks[section.first_block + b];
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

}  // namespace shardwright::sim
