// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/range_walk.h"

#include <algorithm>
#include <string_view>

#include "profiles/import/observe.h"
#include "profiles/import/trace_reader.h"

namespace shardwright::profiles {
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
