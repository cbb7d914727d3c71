// SPDX-License-Identifier: Apache-2.0
// How the steps of a run's ranks are traced: kernel by kernel where CUPTI lets, else by events.
#pragma once

#include <memory>
#include <string>

#include "cli/run/options.h"
#include "exec/device.h"
#include "exec/trace/activity.h"
#include "sim/core/schedule.h"

namespace shardwright::cli {

class RankTracing {
 public:
  /// Of the `ranks` ranks of this process. Before anything touches a GPU.
  RankTracing(const RunOptions& options, int ranks);
  ~RankTracing();
  RankTracing(const RankTracing&) = delete;
  RankTracing& operator=(const RankTracing&) = delete;

  /// For rank `rank` on its device; null where operations are timed by events or nothing is traced.
  std::unique_ptr<exec::StepTracer> tracer(int rank, const exec::Device& device) const;
  /// Why kernels are not traced although that was asked for, one sentence; empty: they are, or it
  /// was not.
  const std::string& note() const { return note_; }

 private:
  struct Session;
  std::unique_ptr<Session> session_;
  std::string note_;
};

}  // namespace shardwright::cli
