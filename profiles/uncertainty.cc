// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "profiles/data_dir.h"
#include "sim/core/atomic_file.h"
#include "sim/core/error.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kResidualsSchema = "shardwright.residuals/1.0";
constexpr double kWidestError = 10;  // a factor of 20,000

ErrorGroup read_error_group(const JsonReader& from) {
  from.reject_unknown_keys({"stack", "regime", "n", "pool", "pool_n", "half_width"});
  ErrorGroup group;
  group.stack = from.require<std::string>("stack");
  group.regime = from.require_choice("regime", {name_of(Regime::kComputeBound),
                                                name_of(Regime::kCommunicationBound)}) ==
                         name_of(Regime::kComputeBound)
                     ? Regime::kComputeBound
                     : Regime::kCommunicationBound;
  group.n = from.require<std::int64_t>("n", at_least(std::int64_t{0}));
  group.pool = from.require<std::string>("pool");
  group.pool_n = from.require<std::int64_t>("pool_n", at_least(std::int64_t{1}));
  group.half_width = from.require<double>("half_width", between(0.0, kWidestError));
  return group;
}

HeldOutRun read_run(const JsonReader& from) {
  from.reject_unknown_keys(
      {"id", "source", "stack", "gpu", "exposed_share", "log_error", "log_error_source_out"});
  HeldOutRun run;
  run.id = from.require<std::string>("id");
  run.source = from.require<std::string>("source");
  run.stack = from.require<std::string>("stack");
  run.gpu = from.require<std::string>("gpu");
  run.exposed_share = from.require<double>("exposed_share", between(0.0, 1.0));
  run.log_error = from.require<double>("log_error", between(-kWidestError, kWidestError));
  run.log_error_source_out =
      from.require<double>("log_error_source_out", between(-kWidestError, kWidestError));
  return run;
}

/// Five decimals: a thousandth of a percent.
double to_five_decimals(double value) {
  return std::round(value * 1e5) / 1e5;
}

JsonFile open(const std::filesystem::path& file) {
  JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kResidualsSchema});
  root.reject_unknown_keys({"schema", "source", "command", "date", "level", "regime_boundary",
                            "groups", "elsewhere", "ranges", "seen", "runs"});
  return document;
}

}  // namespace

std::string_view name_of(Regime regime) {
  return regime == Regime::kComputeBound ? "compute-bound" : "communication-bound";
}

std::filesystem::path shipped_residuals() {
  return data_dir() / "fitted" / "residuals.json";
}

Uncertainty load_uncertainty(const std::filesystem::path& file) {
  const JsonFile document = open(file);
  const JsonReader root = document.root();
  Uncertainty result;
  result.source = root.require<std::string>("source");
  result.command = root.require<std::string>("command");
  result.date = root.require<std::string>("date");
  result.level = root.require<double>("level", between(0.5, 0.999));
  result.regime_boundary = root.require<double>("regime_boundary", between(0.0, 1.0));
  for (const JsonReader& group : root.require_array("groups")) {
    result.groups.push_back(read_error_group(group));
  }
  const JsonReader elsewhere = root.require_object("elsewhere");
  elsewhere.reject_unknown_keys({"sources", "half_width"});
  result.elsewhere_sources = elsewhere.require<std::int64_t>("sources", at_least(std::int64_t{0}));
  result.elsewhere_half_width = elsewhere.require<double>("half_width", between(0.0, kWidestError));
  const JsonReader ranges = root.require_object("ranges");
  for (const std::string& name : ranges.keys()) {
    const std::vector<double> pair = ranges.require_list<double>(name);
    if (pair.size() != 2 || !(pair[0] <= pair[1])) ranges.fail(name, "two rising numbers");
    result.ranges[name] = {pair[0], pair[1]};
  }
  const JsonReader seen = root.require_object("seen");
  for (const std::string& kind : seen.keys()) {
    result.seen[kind] = seen.require_list<std::string>(kind);
  }
  return result;
}

Uncertainty load_uncertainty() {
  const std::filesystem::path file = shipped_residuals();
  return std::filesystem::exists(file) ? load_uncertainty(file) : Uncertainty{};
}

std::vector<HeldOutRun> load_held_out_runs(const std::filesystem::path& file) {
  const JsonFile document = open(file);
  std::vector<HeldOutRun> runs;
  for (const JsonReader& run : document.root().require_array("runs")) {
    runs.push_back(read_run(run));
  }
  return runs;
}

void save_uncertainty(const Uncertainty& uncertainty, const std::vector<HeldOutRun>& runs,
                      const std::filesystem::path& file) {
  ordered_json json{
      {"schema", kResidualsSchema},     {"source", uncertainty.source},
      {"command", uncertainty.command}, {"date", uncertainty.date},
      {"level", uncertainty.level},     {"regime_boundary", uncertainty.regime_boundary},
      {"groups", ordered_json::array()}};
  for (const ErrorGroup& group : uncertainty.groups) {
    json["groups"].push_back({{"stack", group.stack},
                              {"regime", name_of(group.regime)},
                              {"n", group.n},
                              {"pool", group.pool},
                              {"pool_n", group.pool_n},
                              {"half_width", to_five_decimals(group.half_width)}});
  }
  json["elsewhere"] = {{"sources", uncertainty.elsewhere_sources},
                       {"half_width", to_five_decimals(uncertainty.elsewhere_half_width)}};
  json["ranges"] = ordered_json::object();
  for (const auto& [name, range] : uncertainty.ranges) json["ranges"][name] = range;
  json["seen"] = ordered_json::object();
  for (const auto& [kind, words] : uncertainty.seen) json["seen"][kind] = words;
  json["runs"] = ordered_json::array();
  for (const HeldOutRun& run : runs) {
    json["runs"].push_back({{"id", run.id},
                            {"source", run.source},
                            {"stack", run.stack},
                            {"gpu", run.gpu},
                            {"exposed_share", to_five_decimals(run.exposed_share)},
                            {"log_error", to_five_decimals(run.log_error)},
                            {"log_error_source_out", to_five_decimals(run.log_error_source_out)}});
  }
  write_file_atomically(file, json.dump(1) + "\n");
}

}  // namespace shardwright::profiles
