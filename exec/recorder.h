// SPDX-License-Identifier: Apache-2.0
// When every operation of a step ran, by the device's clock, and when the host issued it.
//
// All memory is taken before the step; streams write into places of their own, so recording is a
// clock reading on each side of an operation. An operation that runs as several kernels has several
// spans. Where a tracer watches the step, its spans take the place of clock readings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/device.h"
#include "exec/trace/activity.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::exec {

// Shows a profiler of others what the host enqueues: named ranges of the calling thread.

class RangeMarker {
 public:
  virtual ~RangeMarker() = default;
  virtual void begin(const std::string& name) = 0;
  virtual void end() = 0;

  /// A range from its construction to its destruction; none without a marker.
  class Scope {
   public:
    Scope(RangeMarker* marker, const std::string& name) : marker_(marker) {
      if (marker_ != nullptr) marker_->begin(name);
    }
    ~Scope() {
      if (marker_ != nullptr) marker_->end();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RangeMarker* marker_;
  };
};

class Recorder {
 public:
  /// `spans` is the number of spans of a step; with none nothing is recorded. With a tracer only
  /// the steps that it watches are.
  Recorder(Device& device, std::size_t spans, std::int32_t rank, StepTracer* tracer = nullptr);

  /// Before the time of a step begins, and when it does.
  void prepare_step(std::int32_t step);
  void begin_step(std::int32_t step);
  bool records() const { return !spans_.empty() && (tracer_ == nullptr || watched_); }

  /// Records from its construction to its destruction, in the order of the stream.
  class Scope {
   public:
    Scope(Recorder& recorder, OpId id, StreamId stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Recorder& recorder_;
    Span* span_;
  };

  /// The step's spans as a measured timeline; times count from the step's begin. Its memory is what
  /// the schedule holds when operations end, within the `reserved` bytes. The device is idle.
  Timeline timeline(const Schedule& schedule, Bytes reserved) const;

 private:
  Device& device_;
  std::int32_t rank_;
  StepTracer* tracer_;
  bool watched_ = false;
  std::vector<Span> spans_;
  std::vector<Span> host_;
  std::size_t used_ = 0;
  Nanoseconds step_begin_ns_ = 0;
  std::int32_t step_ = 0;
};

}  // namespace shardwright::exec
