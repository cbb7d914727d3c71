// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/step_parts.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "sim/core/base/numbers.h"
#include "sim/core/base/words.h"

namespace shardwright::sim {
namespace {

struct Kernel {
  Nanoseconds begin = 0, end = 0;
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
  static constexpr std::array<std::string_view, 4> kNames = {"forward", "backward", "optimizer",
                                                             "ends"};
  static_assert(kNames.size() == static_cast<std::size_t>(StepPart::kEnds) + 1);
  return name_in(kNames, part);
}

std::string_view name_of(Bound bound) {
  static constexpr std::array<std::string_view, 3> kNames = {"kernels", "communication", "host"};
  static_assert(kNames.size() == static_cast<std::size_t>(Bound::kHost) + 1);
  return name_in(kNames, bound);
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
  std::vector<std::pair<Nanoseconds, Nanoseconds>> collectives;
  for (const Span& span : timeline.spans) {
    if (span.id < 0 || static_cast<std::size_t>(span.id) >= op_of.size()) continue;
    const Op& op = schedule.ops[op_of[static_cast<std::size_t>(span.id)]];
    if (!is_collective(op.kind)) {
      kernels.push_back({span.begin_ns, span.end_ns, part_of(op.phase), op.work.kind});
      continue;
    }
    collectives.emplace_back(span.begin_ns, span.end_ns);
    PartTimes& issued_in = part(part_of(op.phase));
    const bool gather = op.kind == OpKind::kAllGather || op.kind == OpKind::kBroadcast;
    (gather ? issued_in.gathers_s : issued_in.reductions_s) +=
        seconds_of(span.end_ns - span.begin_ns);
    ++(gather ? issued_in.gathers : issued_in.reductions);
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.begin < b.begin; });

  const SpanUnion communicating(std::move(collectives));
  const auto wait = [&](Nanoseconds begin, Nanoseconds end, StepPart which) {
    const Nanoseconds covered = communicating.overlap(begin, end);
    part(which).awaits_communication_s += seconds_of(covered);
    part(which).awaits_host_s += seconds_of(end - begin - covered);
  };
  Nanoseconds now = 0;
  StepPart before = StepPart::kEnds;  // of the kernel that ended last
  for (const Kernel& kernel : kernels) {
    if (kernel.begin > now) {
      const bool hides_nothing = before == StepPart::kEnds ||
                                 (before != kernel.part && kernel.part == StepPart::kOptimizer);
      wait(now, kernel.begin, hides_nothing ? StepPart::kEnds : kernel.part);
      now = kernel.begin;
    }
    // Kernels of two streams may overlap where one displaces the other; an instant counts once.
    if (kernel.end > now) {
      add_kernel_time(part(kernel.part), kernel.work, seconds_of(kernel.end - now));
      now = kernel.end;
    }
    before = kernel.part;
  }
  if (timeline.step_ns > now) wait(now, timeline.step_ns, StepPart::kEnds);
  return parts;
}

}  // namespace shardwright::sim
