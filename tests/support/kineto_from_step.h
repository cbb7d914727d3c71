// SPDX-License-Identifier: Apache-2.0
// A simulated step of FSDP2 on PyTorch's eager kernels, written as torch.profiler would have
// recorded it: operators with shapes and types, launches, kernels under their real names, FSDP's
// annotations, collectives' arguments. What a trace of such a job shows, from a truth that is
// known.
#pragma once

#include <string>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::testing {

struct KinetoJob {
  const Model* model;
  const Plan* plan;
  const Schedule* schedule;
  const Timeline* timeline;  // of one step
  std::string gpu = "NVIDIA H100 80GB HBM3";
  int devices = 8;
  int rank = 0;
  int steps = 3;
  Nanoseconds small_kernel_ns = 2000;  // kernels that move nothing to speak of
};

std::string kineto_trace(const KinetoJob& job);

}  // namespace shardwright::testing
