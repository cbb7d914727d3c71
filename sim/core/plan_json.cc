// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_json.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/read_file.h"
#include "sim/core/base/words.h"
#include "sim/core/plan_knobs.h"

namespace shardwright {
namespace {

constexpr std::string_view kSchema = "shardwright.plan";
constexpr int kMajor = 1;

/// Keys of a plan that nobody asked for.
void refuse_others(const JsonReader& object, const std::set<std::string, std::less<>>& asked) {
  for (const std::string& key : object.keys()) {
    if (key.starts_with('_') || asked.contains(key)) continue;
    throw Error(fmt::format("{}: {}{}{} is not a known key, expected one of {}", object.file(),
                            object.path(), object.path().empty() ? "" : ".", key,
                            fmt::join(asked, ", ")));
  }
}

/// What names are repeated in: settings of trainers, scripts, tables.
void check_names(const PlanDocument& document, const std::string& file) {
  const auto check = [&file](std::string_view key, std::string_view name) {
    if (is_shown(name)) return;
    throw Error(
        fmt::format("{}: {} holds a control character, a line separator or a mark of "
                    "direction, expected a name without",
                    file, key));
  };
  check("model", document.model);
  check("cluster", document.cluster);
  check("plan.stack", document.plan.stack);
  for (const std::string& value : document.overrides) check("set", value);
}

}  // namespace

nlohmann::ordered_json plan_to_json(const Plan& plan) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  const bool divides = !plan.parallel.plain() || !plan.numerics.plain();
  for (const PlanKnob& knob : plan_knobs()) {
    if (divides || !knob.divides) knob.to_file(plan, object);
  }
  return object;
}

std::string plan_text(const Plan& plan) {
  return plan_to_json(plan).dump();
}

Plan plan_from_json(const JsonReader& given) {
  std::set<std::string, std::less<>> asked;
  const JsonReader object = given.noting(asked);
  Plan plan;
  object.require<std::string>("strategy");
  object.require<std::int64_t>("gpus", at_least<std::int64_t>(1));
  for (const PlanKnob& knob : plan_knobs()) knob.from_file(object, plan);
  refuse_others(given, asked);
  // What a file says of these two may be what holds without it.
  Parallelism& p = plan.parallel;
  if (p.tp == 1 && p.sp == false) p.sp.reset();
  Parallelism usual;
  usual.virtual_stages = p.virtual_stages;
  if (p.pp_schedule == usual.schedule()) p.pp_schedule.reset();
  return plan;
}

PlanDocument parse_plan(std::string_view text, std::string name) {
  const JsonFile file = JsonFile::parse(text, std::move(name));
  const JsonReader root = file.root();
  require_schema(root, kSchema, kMajor);
  PlanDocument document;
  document.model = root.optional<std::string>("model", "");
  document.cluster = root.optional<std::string>("cluster", "");
  document.plan = plan_from_json(root.require_object("plan"));
  const auto text_of = [&](std::string_view key) {
    // Parsed again, because only ordered_json keeps the order in which the keys were written.
    return root.find_object(key) ? parse_ordered_json(text)[std::string(key)].dump()
                                 : std::string();
  };
  document.model_config = text_of("model_config");
  document.cluster_file = text_of("cluster_file");
  if (root.has("set")) document.overrides = root.require_list<std::string>("set");
  document.prediction = text_of("prediction");
  document.command = root.optional<std::string>("command", "");
  document.tool_version = root.optional<std::string>("tool_version", "");
  check_names(document, root.file());
  return document;
}

PlanDocument read_plan(const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  return parse_plan(read_file(path, kMostBytes), path.string());
}

std::string plan_text(const PlanDocument& document) {
  nlohmann::ordered_json root = {{"schema", fmt::format("{}/{}.0", kSchema, kMajor)},
                                 {"model", document.model},
                                 {"cluster", document.cluster},
                                 {"plan", plan_to_json(document.plan)}};
  if (!document.overrides.empty()) root["set"] = document.overrides;
  const auto embed = [&root](const char* key, const std::string& object) {
    if (object.empty()) return;
    root[key] = parse_ordered_json(object, false);
    SHARDWRIGHT_CHECK(root[key].is_object(), "{} is a JSON object", key);
  };
  embed("prediction", document.prediction);
  if (!document.command.empty()) root["command"] = document.command;
  root["tool_version"] = document.tool_version;
  embed("model_config", document.model_config);
  embed("cluster_file", document.cluster_file);
  // File names may hold bytes that are not UTF-8.
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_plan(const std::filesystem::path& path, const PlanDocument& document) {
  write_file_atomically(path, plan_text(document));
}

}  // namespace shardwright
