// SPDX-License-Identifier: Apache-2.0
#include "profiles/step_parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

constexpr std::string_view kStepsSchema = "shardwright.step_parameters/1.0";

/// The first word of the paths that a file of this scope holds.
std::string_view group_of(StepScope scope) {
  return scope == StepScope::kGpu ? "cost." : scope == StepScope::kCluster ? "cluster." : "stack.";
}

std::array<double, 2> read_pair(const JsonReader& from, std::string_view key) {
  const std::vector<double> pair = from.require_list<double>(key);
  if (pair.size() != 2 || !(pair[0] > 0 && pair[1] >= pair[0])) {
    from.fail(key, "two rising numbers above 0");
  }
  return {pair[0], pair[1]};
}

void read_scope(const JsonReader& from, StepParameter& p) {
  const JsonReader scope = from.require_object("applies_to");
  scope.reject_unknown_keys({"gpu", "cluster", "stack"});
  if (scope.keys().size() != 1) from.fail("applies_to", "exactly one of gpu, cluster and stack");
  const std::string kind = scope.keys().front();
  p.scope = kind == "gpu"       ? StepScope::kGpu
            : kind == "cluster" ? StepScope::kCluster
                                : StepScope::kStack;
  p.applies_to = scope.require_list<std::string>(kind);
  if (p.applies_to.empty()) scope.fail(kind, "at least one name");
}

void read_targets(const JsonReader& from, StepParameter& p) {
  const JsonReader targets = from.require_object("targets");
  for (const std::string& path : targets.keys()) {
    if (!path.starts_with(group_of(p.scope))) {
      targets.fail(path, fmt::format("only paths that begin with {} for a {}", group_of(p.scope),
                                     name_of(p.scope)));
    }
    p.targets.push_back({path, targets.require<double>(path, above(0.0))});
  }
  if (p.targets.empty()) from.fail("targets", "at least one path of the profile");
}

StepParameter read_parameter(const JsonReader& from) {
  from.reject_unknown_keys(
      {"name", "meaning", "applies_to", "sources", "targets", "bounds", "prior", "fitted"});
  StepParameter p;
  p.name = from.require<std::string>("name");
  p.meaning = from.require<std::string>("meaning");
  read_scope(from, p);
  if (from.has("sources")) p.sources = from.require_list<std::string>("sources");
  read_targets(from, p);
  const auto bounds = read_pair(from, "bounds");
  if (bounds[1] <= bounds[0]) from.fail("bounds", "two rising numbers above 0");
  p.min = bounds[0];
  p.max = bounds[1];
  const JsonReader prior = from.require_object("prior");
  prior.reject_unknown_keys({"value", "spread", "source"});
  p.prior = prior.require<double>("value", between(p.min, p.max));
  p.prior_spread = prior.require<double>("spread", above(0.0));
  p.prior_source = prior.require<std::string>("source");
  if (const auto fitted = from.find_object("fitted")) {
    fitted->reject_unknown_keys({"value", "interval", "in_sample", "held_out"});
    p.fitted = {fitted->require<double>("value", between(p.min, p.max)),
                read_pair(*fitted, "interval"), read_errors(*fitted, "in_sample"),
                read_errors(*fitted, "held_out")};
  }
  return p;
}

}  // namespace

std::string_view name_of(StepScope scope) {
  return scope == StepScope::kGpu ? "gpu" : scope == StepScope::kCluster ? "cluster" : "stack";
}

std::filesystem::path shipped_step_parameters() {
  return data_dir() / "fitted" / "step_parameters.json";
}

StepParameters load_step_parameters(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kStepsSchema});
  root.reject_unknown_keys({"schema", "parameters", "fit"});
  StepParameters result;
  for (const JsonReader& parameter : root.require_array("parameters")) {
    result.parameters.push_back(read_parameter(parameter));
  }
  return result;
}

bool sees(const StepParameter& parameter, const Profile& profile, const std::string& cluster,
          std::string_view source) {
  if (!parameter.sources.empty() && std::find(parameter.sources.begin(), parameter.sources.end(),
                                              source) == parameter.sources.end()) {
    return false;
  }
  const std::string& id = parameter.scope == StepScope::kGpu       ? profile.cluster.gpu.id
                          : parameter.scope == StepScope::kCluster ? cluster
                                                                   : profile.stack.family;
  if (std::find(parameter.applies_to.begin(), parameter.applies_to.end(), id) ==
      parameter.applies_to.end()) {
    return false;
  }
  // A kernel that the stack does not run changes nothing.
  constexpr std::string_view kAttention = "cost.attention.";
  return std::any_of(
      parameter.targets.begin(), parameter.targets.end(), [&](const StepTarget& target) {
        return !target.path.starts_with(kAttention) ||
               target.path.compare(kAttention.size(), profile.stack.attention_kernel.size() + 1,
                                   profile.stack.attention_kernel + '.') == 0;
      });
}

std::vector<const StepParameter*> seen_by(const std::vector<const StepParameter*>& all,
                                          const Profile& profile, const std::string& cluster,
                                          std::string_view source) {
  std::vector<const StepParameter*> seen;
  std::set<std::string_view> of_source;
  for (const StepParameter* parameter : all) {
    if (!sees(*parameter, profile, cluster, source)) continue;
    seen.push_back(parameter);
    if (parameter->sources.empty()) continue;
    for (const StepTarget& target : parameter->targets) of_source.insert(target.path);
  }
  std::erase_if(seen, [&](const StepParameter* parameter) {
    return parameter->sources.empty() &&
           std::any_of(parameter->targets.begin(), parameter->targets.end(),
                       [&](const StepTarget& target) { return of_source.contains(target.path); });
  });
  return seen;
}

bool is_set_by(const StepParameter& parameter, const std::vector<std::string>& overrides) {
  return std::any_of(
      parameter.targets.begin(), parameter.targets.end(),
      [&](const StepTarget& target) { return is_overridden(overrides, target.path); });
}

void apply_source_constants(const StepParameters& parameters, const std::string& cluster,
                            std::string_view source, const std::vector<std::string>& overrides,
                            Profile& profile) {
  std::vector<const StepParameter*> own;
  std::vector<double> values;
  for (const StepParameter& parameter : parameters.parameters) {
    if (parameter.sources.empty() || is_set_by(parameter, overrides) ||
        !sees(parameter, profile, cluster, source)) {
      continue;
    }
    own.push_back(&parameter);
    values.push_back(parameter.fitted ? parameter.fitted->value : parameter.prior);
  }
  apply_steps(own, values, profile);
}

void apply_steps(const std::vector<const StepParameter*>& parameters,
                 const std::vector<double>& values, Profile& profile) {
  SHARDWRIGHT_CHECK(parameters.size() == values.size(), "{} parameters, {} values",
                    parameters.size(), values.size());
  if (parameters.empty()) return;
  const FieldList fields = fields_of(profile);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const StepTarget& target : parameters[i]->targets) {
      const Field* field = fields.find(target.path);
      double* const* number = field == nullptr ? nullptr : std::get_if<double*>(&field->target);
      if (number == nullptr) {
        throw Error(
            fmt::format("step_parameters.json: {} sets '{}', expected the path of a number "
                        "of the profile",
                        parameters[i]->name, target.path));
      }
      **number = target.times * values[i];
    }
  }
}

}  // namespace shardwright::profiles
