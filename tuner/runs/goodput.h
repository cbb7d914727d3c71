// SPDX-License-Identifier: Apache-2.0
// How much of a long run is useful work: failures, restarts and checkpoints.
//
// A run on G GPUs is interrupted at random, on average every M = (MTBF of one GPU) / G. It loses
// the work since the last checkpoint and the restart R; it writes a checkpoint, which takes d,
// after every t of useful work. For exponentially distributed interruptions that may also hit
// checkpoints and restarts, the expected wall time per useful time is
//
//   M e^(R/M) (e^((t+d)/M) - 1) / t
//
// (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
// Generation Computer Systems 22, 2006, 303-312, equation 20); goodput is its inverse. It leaves
// out planned maintenance, slow nodes and checkpoints that are written beside the training.
#pragma once

#include <cstdint>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright::tuner {

/// t that Young (1974) gives to first order: sqrt(2 d M).
double young_interval_s(double checkpoint_s, double mtbf_s);

/// Daly's estimate (equation 37): sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/2M/9) - d where d < 2 M, else
/// M.
double daly_interval_s(double checkpoint_s, double mtbf_s);

/// Share of wall time that is useful when `interval_s` of work lie between checkpoints.
double goodput_at(double interval_s, double checkpoint_s, double restart_s, double mtbf_s);

/// What is written: master weights and both moments of Adam; the rest follows from them.
Bytes checkpoint_bytes(const Model& model, const Plan& plan);

struct Outages {
  double mtbf_gpu_hours = 0;
  double restart_s = 0;
  double checkpoint_s = 0;      // that one holds training up
  double least_interval_s = 0;  // between checkpoints, whatever failures advise
};

struct Goodput {
  double mtbf_s = 0;        // of all GPUs together
  double checkpoint_s = 0;  // that one holds training up
  double write_s = 0;       // until it is on storage, beside the training
  double interval_s = 0;    // of useful work between two: as Daly advises, or the least
  double share = 1;         // of wall time that is useful
};

Goodput goodput_of(const Outages& outages, std::int64_t gpus);

}  // namespace shardwright::tuner
