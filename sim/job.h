// SPDX-License-Identifier: Apache-2.0
// What is trained, on what and how: the question that a prediction answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "profiles/cluster_file.h"
#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/plan_json.h"

namespace shardwright::sim {

struct Job {
  std::string model_name, cluster_name;  // as given, for files and messages
  std::string model_config;              // the text of the model's config.json
  profiles::ClusterFile cluster_file;    // that the profile is of
  Model model;
  profiles::Profile profile;                // of the cluster, with the stack of the plans
  std::vector<std::string> overrides;       // "KEY=VALUE", a plan file's before those given with it
  std::vector<Plan> plans;                  // several to hold side by side
  std::optional<std::string> usual_length;  // where sequences are as long as is usual: what that is
};

/// The model and the cluster file that a plan file was made for: its own where it holds them, what
/// it names where not. A name given beside the file (none: not given) takes the place of its own.
/// Fills the names and texts of a Job, not its profile. Throws Error.
Job job_of(const PlanDocument& document, const std::string& file,
           const std::optional<std::string>& model, const std::optional<std::string>& cluster);

/// A plan of the job as a file that means the same elsewhere; without prediction and origin.
PlanDocument document_of(const Job& job, const Plan& plan);

}  // namespace shardwright::sim
