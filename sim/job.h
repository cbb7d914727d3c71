// SPDX-License-Identifier: Apache-2.0
// What is trained, on what and how: the question that a prediction answers.
#pragma once

#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

struct Job {
  std::string model_name, cluster_name;  // as given, for files and messages
  Model model;
  profiles::Profile profile;           // of the cluster, with the stack of the plans
  std::vector<std::string> overrides;  // "KEY=VALUE", a plan file's before those given with it
  std::vector<Plan> plans;             // several to hold side by side
};

}  // namespace shardwright::sim
