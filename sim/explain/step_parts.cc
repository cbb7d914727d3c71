#include "sim/explain/step_parts.h"

#include <algorithm>
#include <vector>

namespace shardwright::sim {
namespace {

struct Interval {
  Nanoseconds begin = 0, end = 0;
};

struct Kernel {
  Interval at;
  StepPart part = StepPart::kForward;
  WorkKind work = WorkKind::kMemory;
};

StepPart part_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
    case Phase::kLoss:
      return StepPart::kForward;
    case Phase::kRecompute:
    case Phase::kBackward:
    case Phase::kReduce:
      return StepPart::kBackward;
    case Phase::kOptimizer:
      return StepPart::kOptimizer;
    case Phase::kPrepare:
      break;
  }
  return StepPart::kEnds;
}

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// Answers how much of an interval is covered by sorted intervals that do not overlap.
class Coverage {
 public:
  explicit Coverage(std::vector<Interval> intervals) {
    std::sort(intervals.begin(), intervals.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    for (const Interval& interval : intervals) {
      if (!merged_.empty() && interval.begin <= merged_.back().end) {
        merged_.back().end = std::max(merged_.back().end, interval.end);
      } else {
        merged_.push_back(interval);
      }
    }
  }
  Nanoseconds of(Interval asked) const {
    auto at = std::partition_point(merged_.begin(), merged_.end(), [&](const Interval& interval) {
      return interval.end <= asked.begin;
    });
    Nanoseconds covered = 0;
    for (; at != merged_.end() && at->begin < asked.end; ++at) {
      covered += std::min(at->end, asked.end) - std::max(at->begin, asked.begin);
    }
    return covered;
  }

 private:
  std::vector<Interval> merged_;
};

void add_kernel_time(PartTimes& part, WorkKind work, double time_s) {
  part.kernels_s += time_s;
  if (work == WorkKind::kGemm) {
    part.products_s += time_s;
  } else if (work == WorkKind::kAttention) {
    part.attention_s += time_s;
  } else {
    part.memory_bound_s += time_s;
  }
}

}  // namespace

std::string_view name_of(StepPart part) {
  switch (part) {
    case StepPart::kForward:
      return "forward";
    case StepPart::kBackward:
      return "backward";
    case StepPart::kOptimizer:
      return "optimizer";
    case StepPart::kEnds:
      break;
  }
  return "ends";
}

std::string_view name_of(Bound bound) {
  switch (bound) {
    case Bound::kCommunication:
      return "communication";
    case Bound::kHost:
      return "host";
    case Bound::kKernels:
      break;
  }
  return "kernels";
}

Bound PartTimes::bound() const {
  const double wait_s = std::max(awaits_communication_s, awaits_host_s);
  if (wait_s < 0.05 * total_s() || wait_s == 0) return Bound::kKernels;
  return awaits_communication_s >= awaits_host_s ? Bound::kCommunication : Bound::kHost;
}

StepParts part_times(const Schedule& schedule, const Timeline& timeline) {
  std::vector<std::uint32_t> op_of;
  for_each_op(schedule, [&](const OpInstance& at, const Op&) { op_of.push_back(at.op); });

  StepParts parts{};
  const auto part = [&parts](StepPart which) -> PartTimes& {
    return parts[static_cast<std::size_t>(which)];
  };
  std::vector<Kernel> kernels;
  std::vector<Interval> collectives;
  for (const Span& span : timeline.spans) {
    if (span.id < 0 || static_cast<std::size_t>(span.id) >= op_of.size()) continue;
    const Op& op = schedule.ops[op_of[static_cast<std::size_t>(span.id)]];
    const Interval at{span.begin_ns, span.end_ns};
    if (!is_collective(op.kind)) {
      kernels.push_back({at, part_of(op.phase), op.work.kind});
      continue;
    }
    collectives.push_back(at);
    PartTimes& issued_in = part(part_of(op.phase));
    const bool gather = op.kind == OpKind::kAllGather || op.kind == OpKind::kBroadcast;
    (gather ? issued_in.gathers_s : issued_in.reductions_s) += seconds(at.end - at.begin);
    ++(gather ? issued_in.gathers : issued_in.reductions);
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.at.begin < b.at.begin; });

  const Coverage communicating(std::move(collectives));
  const auto wait = [&](Interval gap, StepPart which) {
    const Nanoseconds covered = communicating.of(gap);
    part(which).awaits_communication_s += seconds(covered);
    part(which).awaits_host_s += seconds(gap.end - gap.begin - covered);
  };
  Nanoseconds now = 0;
  StepPart before = StepPart::kEnds;  // of the kernel that ended last
  for (const Kernel& kernel : kernels) {
    if (kernel.at.begin > now) {
      const bool hides_nothing = before == StepPart::kEnds ||
                                 (before != kernel.part && kernel.part == StepPart::kOptimizer);
      wait({now, kernel.at.begin}, hides_nothing ? StepPart::kEnds : kernel.part);
      now = kernel.at.begin;
    }
    // Kernels of two streams may overlap where one displaces the other; an instant counts once.
    if (kernel.at.end > now) {
      add_kernel_time(part(kernel.part), kernel.work, seconds(kernel.at.end - now));
      now = kernel.at.end;
    }
    before = kernel.part;
  }
  if (timeline.step_ns > now) wait({now, timeline.step_ns}, StepPart::kEnds);
  return parts;
}

}  // namespace shardwright::sim
