// SPDX-License-Identifier: Apache-2.0
#include "sim/job.h"

#include <algorithm>

#include "profiles/data_file.h"
#include "sim/core/hf/config.h"

namespace shardwright::sim {
namespace {

bool ships(const std::string& cluster) {
  const std::vector<std::string> names = profiles::shipped_names(profiles::DataKind::kCluster);
  return std::find(names.begin(), names.end(), cluster) != names.end();
}

}  // namespace

Job job_of(const PlanDocument& document, const std::string& file,
           const std::optional<std::string>& model, const std::optional<std::string>& cluster) {
  Job job;
  job.model_name = model.value_or(document.model);
  job.cluster_name = cluster.value_or(document.cluster);
  const bool own_model = !model && !document.model_config.empty();
  const bool own_cluster = !cluster && !document.cluster_file.empty();
  job.model_config = own_model ? document.model_config
                               : read_model_config(profiles::data_dir() / "models", job.model_name);
  job.model = own_model ? parse_hf_config(job.model_config, file + ": model_config",
                                          model_name_of(job.model_name))
                        : load_model(profiles::data_dir() / "models", job.model_name);
  job.cluster_file = own_cluster
                         ? profiles::parse_cluster(document.cluster_file, file + ": cluster_file")
                         : profiles::load_cluster(job.cluster_name);
  return job;
}

PlanDocument document_of(const Job& job, const Plan& plan) {
  PlanDocument document;
  document.model = job.model_name;
  document.model_config = job.model_config;
  document.cluster = job.cluster_name;
  if (!ships(job.cluster_name)) document.cluster_file = profiles::to_json(job.cluster_file);
  document.plan = plan;
  document.overrides = job.overrides;
  return document;
}

}  // namespace shardwright::sim
