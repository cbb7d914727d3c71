// SPDX-License-Identifier: Apache-2.0
#include "sim/core/trace_identity.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/plan_json.h"

namespace shardwright {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModel = "model";
constexpr const char* kConfig = "model_config";
constexpr const char* kPlan = "plan";
constexpr const char* kPerNode = "gpus_per_node";

std::string note(const std::map<std::string, std::string>& notes, const char* key) {
  const auto at = notes.find(key);
  return at != notes.end() ? at->second : std::string();
}

/// Members of two objects that differ: "WHAT is A, not B".
void compare_members(const Json& mine, const Json& other, const std::string& whose,
                     std::vector<std::string>& out) {
  std::set<std::string> keys;
  for (const Json* side : {&mine, &other}) {
    for (const auto& [key, value] : side->items()) keys.insert(key);
  }
  const auto text = [](const Json& object, const std::string& key) {
    return object.contains(key) ? object[key].dump() : std::string("not given");
  };
  for (const std::string& key : keys) {
    if (key.starts_with('_')) continue;
    const std::string left = text(mine, key), right = text(other, key);
    if (left != right) out.push_back(fmt::format("{}{} is {}, not {}", whose, key, left, right));
  }
}

}  // namespace

TraceNotes notes_of(const TraceIdentity& identity) {
  return {{kModel, identity.model},
          {kConfig, identity.model_config},
          {kPlan, plan_text(identity.plan)},
          {"stack", identity.plan.stack},
          {kPerNode, fmt::format("{}", identity.gpus_per_node)}};
}

TraceNotes notes_of(const TraceOrigin& origin) {
  return {{"device", origin.device},
          {"device_name", origin.device_name},
          {"device_units", fmt::format("{}", origin.units)},
          {"device_memory_bytes", fmt::format("{}", origin.memory_bytes)},
          {"devices", fmt::format("{}", origin.devices)},
          {"streams", origin.streams},
          {"software", origin.software},
          {"date", origin.date},
          {"transport", origin.transport},
          {"step_time_s", nlohmann::json(origin.step_s).dump()}};
}

TraceOrigin origin_in(const std::map<std::string, std::string>& notes) {
  const auto number = [&](const char* key) { return parse_int64(note(notes, key)).value_or(0); };
  TraceOrigin origin;
  origin.device = note(notes, "device");
  origin.device_name = note(notes, "device_name");
  origin.units = number("device_units");
  origin.memory_bytes = number("device_memory_bytes");
  origin.devices = number("devices");
  origin.streams = note(notes, "streams");
  origin.software = note(notes, "software");
  origin.date = note(notes, "date");
  origin.transport = note(notes, "transport");
  const auto steps = parse_json(note(notes, "step_time_s"), false);
  if (!steps.is_array()) return origin;
  for (const auto& step : steps) {
    if (step.is_number() && step.get<double>() > 0) origin.step_s.push_back(step.get<double>());
  }
  return origin;
}

std::optional<TraceIdentity> identity_in(const std::map<std::string, std::string>& notes,
                                         const std::string& name) {
  if (!notes.contains(kPlan) || !notes.contains(kConfig)) return std::nullopt;
  TraceIdentity identity;
  identity.model = note(notes, kModel);
  identity.model_config = note(notes, kConfig);
  const JsonFile plan = JsonFile::parse(note(notes, kPlan), name + ", note plan");
  identity.plan = plan_from_json(plan.root());
  const std::optional<std::int64_t> per_node = parse_int64(note(notes, kPerNode));
  if (!per_node || *per_node < 1) {
    throw Error(fmt::format("{}: the note gpus_per_node is '{}', expected a whole number above 0",
                            name, note(notes, kPerNode)));
  }
  identity.gpus_per_node = *per_node;
  return identity;
}

std::vector<std::string> differences(const TraceIdentity& identity, const TraceIdentity& other) {
  std::vector<std::string> found;
  const Json mine = parse_ordered_json(identity.model_config, false);
  const Json theirs = parse_ordered_json(other.model_config, false);
  if (mine.is_object() && theirs.is_object()) {
    compare_members(mine, theirs, "the model's ", found);
  } else if (identity.model_config != other.model_config) {
    found.push_back(fmt::format("the model is {}, not {}", identity.model, other.model));
  }
  compare_members(plan_to_json(identity.plan), plan_to_json(other.plan), "the plan's ", found);
  return found;
}

}  // namespace shardwright
