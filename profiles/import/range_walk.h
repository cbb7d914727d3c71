// SPDX-License-Identifier: Apache-2.0
// What the operators and annotations around a launch say of it: which operator it is work of, in
// which phase and step, for which sharded unit.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "profiles/import/trace_tables.h"
#include "sim/core/schedule.h"

namespace shardwright::profiles {

class RangeWalk {
 public:
  /// `tables` must be joined and outlive this.
  explicit RangeWalk(const TraceTables& tables);

  /// The innermost operator around `range` (itself first) that observe.h knows; not beyond
  /// the autograd function it lies in. kNoIndex: none.
  std::uint32_t owner(std::uint32_t range) const;

  /// Backward inside an autograd function, recompute where such a function runs forward operators
  /// again, optimizer inside its step, else forward.
  Phase phase(std::uint32_t range) const;

  /// The innermost range that tells of a collective (record_param_comms or "nccl:..."); kNoIndex.
  std::uint32_t collective_range(std::uint32_t range) const;

  /// "layers.3" of "FSDP::pre_forward (layers.3)"; empty when there is none.
  std::string unit(std::uint32_t range) const;

  bool inside_fsdp(std::uint32_t range) const;

  /// N of the "ProfilerStep#N" that contains a time on the host; -1: none, 0 when none is named.
  std::int32_t step(Nanoseconds host_time) const;
  /// Durations of the named steps, in order.
  std::vector<double> step_seconds() const;

 private:
  enum Mark : std::uint8_t {
    kKnownOperator = 1,
    kAutograd = 2,
    kCheckpoint = 4,  // the autograd function of a reentrant checkpoint
    kOptimizerStep = 8,
    kOnlyForward = 16,
    kFsdp = 32,
    kCollective = 64
  };
  struct Step {
    Nanoseconds begin, end;
    std::int32_t number;
  };
  std::uint8_t marks(std::uint32_t range) const { return marks_[tables_.ranges[range].name]; }

  const TraceTables& tables_;
  std::vector<std::uint8_t> marks_;  // by NameId
  std::vector<Step> steps_;          // by begin
};

}  // namespace shardwright::profiles
