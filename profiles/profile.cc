// SPDX-License-Identifier: Apache-2.0
#include "profiles/profile.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "profiles/gpu_cost.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

template <typename Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

void adopt(Origins& all, std::string_view group, const Origins& part) {
  for (const auto& [path, origin] : part) all[fmt::format("{}.{}", group, path)] = origin;
}

const Field& require_field(const FieldList& fields, std::string_view path, std::string_view where) {
  const Field* field = fields.find(path);
  if (field != nullptr) return *field;
  throw Error(fmt::format("{}: '{}' is not a value of the profile; the nearest are {}", where, path,
                          fmt::join(nearest_few(path, fields.paths(), 3), ", ")));
}

/// Between GPUs of the node that its costs are of; 0 where nobody knows.
double usual_link(const GpuFile& gpu) {
  const std::vector<std::string> shipped = shipped_names(DataKind::kCluster);
  const bool known = !gpu.gpu.is_processor() &&
                     std::find(shipped.begin(), shipped.end(), gpu.usual_cluster) != shipped.end();
  return known ? load_cluster(gpu.usual_cluster).cluster.intra_link_bytes_per_s : 0;
}

/// What crosses the links of a node that are `after` where they were `before` is as much faster.
void follow_link(GpuCost& cost, double before, double after) {
  if (before <= 0 || after <= 0 || before == after) return;
  CollectiveParams& c = cost.collectives.values;
  for (double* rate :
       {&c.ll.bytes_per_s, &c.ll128.bytes_per_s, &c.simple.bytes_per_s, &c.nvls_simple.bytes_per_s,
        &cost.exchange.values.bytes_per_s, &cost.dispatch.values.link_bytes_per_s})
    *rate *= after / before;
}

/// "set" of a cluster file: the same paths as --set, with values as in data files.
void apply(const SetEntry& entry, Profile& profile) {
  const FieldList fields = fields_of(profile);
  const Field& field = require_field(fields, entry.path, entry.file + ": set");
  const std::string text = fmt::format("{{\"{}\":{}}}", field.path, entry.value_json);
  const JsonFile json = JsonFile::parse(text, entry.file);
  profile.origins[field.path] = read_field(json.root(), field.path, field);
}

}  // namespace

const AttentionParams& Profile::attention() const {
  static constexpr std::array<std::string_view, 4> kKernels = {"fa2", "fa3", "cudnn", "triton"};
  if (const auto at = cost.attention.find(stack.attention_kernel); at != cost.attention.end()) {
    return at->second.values;
  }
  const auto fallback = cost.attention.find("fa2");
  const bool known =
      std::find(kKernels.begin(), kKernels.end(), stack.attention_kernel) != kKernels.end();
  if (known && fallback != cost.attention.end()) return fallback->second.values;
  throw Error(fmt::format("stack.attention_kernel is '{}', expected one of {}",
                          stack.attention_kernel, fmt::join(keys_of(cost.attention), ", ")));
}

FieldList fields_of(Profile& profile) {
  FieldList fields;
  fields.group("cluster", [&] { describe(fields, profile.cluster); });
  fields.group("gpu", [&] { describe(fields, profile.cluster.gpu); });
  fields.group("cost", [&] { describe(fields, profile.cost); });
  fields.group("stack", [&] { describe(fields, profile.stack); });
  return fields;
}

Profile load_profile(const std::string& cluster, const std::string& stack,
                     const std::vector<std::string>& overrides) {
  return make_profile(load_cluster(cluster), load_stack(stack), overrides);
}

Profile make_profile(const ClusterFile& cluster, const StackFile& stack,
                     const std::vector<std::string>& overrides) {
  Profile profile = make_profile(cluster, stack, load_gpu_costs(), overrides);
  profile.uncertainty = load_uncertainty();
  return profile;
}

Profile make_profile(const ClusterFile& cluster, const StackFile& stack, const GpuCosts& costs,
                     const std::vector<std::string>& overrides) {
  Profile profile;
  profile.cluster = cluster.cluster;
  profile.stack = stack.stack;
  profile.cost = cost_of(cluster.gpu, costs);
  adopt(profile.origins, "cluster", cluster.origins);
  adopt(profile.origins, "gpu", cluster.gpu.origins);
  adopt(profile.origins, "cost", origins_of(profile.cost, costs.nccl));
  adopt(profile.origins, "stack", stack.origins);
  profile.origins.try_emplace("cluster.devices_per_node",
                              Origin{"not given: each rank has a device of its own", "", ""});
  for (const char* streams : {"gpu.overlaps_streams", "gpu.independent_streams"})
    profile.origins.try_emplace(streams, Origin{"not given: as on every GPU", "", ""});
  for (const Field& field : fields_of(profile).fields()) {
    profile.origins.try_emplace(field.path, Origin{"not given: the program's default", "", ""});
  }
  if (cluster.described_by != cluster.gpu.usual_cluster)
    follow_link(profile.cost, usual_link(cluster.gpu), cluster.cluster.intra_link_bytes_per_s);
  for (const SetEntry& entry : cluster.set) {
    if (entry.only_for_stack.empty() || entry.only_for_stack == stack.stack.id) {
      apply(entry, profile);
    }
  }
  profile.measured_products = cluster.measured_products;
  if (cluster.calibration) {
    const bool same_stack =
        cluster.calibration->stack.empty() || cluster.calibration->stack == stack.stack.id;
    for (const CalibratedGroup& group : cluster.calibration->groups) {
      // How well the kernels of one stack are known says nothing of another's.
      const bool of_stack = group.group == CostGroup::kMemory || group.group == CostGroup::kHost;
      if (of_stack && !same_stack) continue;
      profile.calibrated_half_width[static_cast<std::size_t>(group.group)] = group.half_width;
    }
    for (const AnchorStep& anchor : cluster.calibration->anchors)
      if (same_stack) profile.anchored_models.push_back(anchor.model);
  }
  const double given = profile.cluster.intra_link_bytes_per_s;
  for (const std::string& key_value : overrides) override_value(profile, key_value);
  if (!profile.cluster.gpu.is_processor())
    follow_link(profile.cost, given, profile.cluster.intra_link_bytes_per_s);
  check_cluster(profile.cluster, "cluster " + profile.cluster.id);
  follow_gpu(profile.cost, profile.cluster.gpu);
  profile.attention();
  return profile;
}

ClusterFile cluster_file_of(const Profile& profile, ClusterFile base) {
  Profile made_again = make_profile(base, load_stack(profile.stack.id));
  Profile wanted = profile;
  const FieldList theirs = fields_of(made_again), ours = fields_of(wanted);
  for (const Field& field : ours.fields()) {
    const Field* same = theirs.find(field.path);
    if (field.path.starts_with("stack.") || same == nullptr) continue;
    const std::string value = json_text(field);
    if (json_text(*same) == value) continue;
    std::string entry = fmt::format("{{\"value\":{}}}", value);
    if (const auto origin = profile.origins.find(field.path); origin != profile.origins.end()) {
      entry = nlohmann::ordered_json{{"value", parse_ordered_json(value)},
                                     {"source", origin->second.source}}
                  .dump();
    }
    base.set.push_back({field.path, std::move(entry), base.cluster.id, ""});
  }
  return base;
}

void override_value(Profile& profile, std::string_view key_value) {
  const std::size_t equals = key_value.find('=');
  if (equals == key_value.npos || equals == 0) {
    throw Error(fmt::format("--set is '{}', expected KEY=VALUE, for example "
                            "cluster.nic_efficiency=0.8",
                            key_value),
                ExitCode::kUsage);
  }
  const std::string_view path = key_value.substr(0, equals);
  const FieldList fields = fields_of(profile);
  const Field& field = require_field(fields, path, "--set");
  set_field(field, key_value.substr(equals + 1), "--set");
  profile.origins[field.path] = {"--set", "", ""};
}

bool is_overridden(const std::vector<std::string>& overrides, std::string_view path) {
  return std::any_of(overrides.begin(), overrides.end(), [&](std::string_view key_value) {
    return key_value.substr(0, key_value.find('=')) == path;
  });
}

}  // namespace shardwright::profiles
