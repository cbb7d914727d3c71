// SPDX-License-Identifier: Apache-2.0
// How good choices among measured layouts would have been: a planner is asked which layout to take,
// not how long it takes.
//
// A group is what one source measured of one model on one cluster with the same tokens a step, the
// same precision, framework and release; its members differ in their layout. The predicted order is
// compared with the measured one (Kendall's tau, ties counted as in tau-b), and the layout that is
// predicted to be the fastest with the one that was: its regret is what it took more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/score/validation.h"

namespace shardwright::sim {

struct ChoiceGroup {
  std::string source, model, gpu, precision, release;
  std::int64_t gpus = 0, seq_len = 0, sequences = 0;  // of a step
  std::int64_t layouts = 0;
  double kendall_tau = 0;
  double regret = 0;         // of the first choice, as a fraction of the fastest step
  double random_regret = 0;  // the mean of all layouts
  std::string chosen, best;  // ids of the rows
};

struct ChoiceScore {
  std::vector<ChoiceGroup> groups;  // with two layouts or more, the largest regret first
  double kendall_tau = 0;           // means of the groups
  double regret_mean = 0, regret_worst = 0, random_regret_mean = 0;
};

/// Of rows with a time that is not suspect. Layouts whose rows say the same are one, the faster of
/// the measured times.
ChoiceScore score_choices(const Validation& validation);

}  // namespace shardwright::sim
