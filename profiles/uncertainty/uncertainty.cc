// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/uncertainty.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/data_dir.h"
#include "profiles/kept_file.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kResidualsSchema = "shardwright.residuals/1.0";
constexpr double kWidestError = 10;  // a factor of 20,000
constexpr std::array<std::string_view, kNovelties> kNoveltyNames = {"cell", "stack_gpu",
                                                                    "source_only", "nothing"};

NoveltyWidth read_width(const JsonReader& from) {
  from.reject_unknown_keys({"novelty", "errors", "runs", "cells", "half_width"});
  NoveltyWidth width;
  const auto novelty = value_in<Novelty>(kNoveltyNames, from.require<std::string>("novelty"));
  if (!novelty) from.fail("novelty", "cell, stack_gpu, source_only or nothing");
  width.novelty = *novelty;
  width.errors = from.require<std::string>("errors");
  width.runs = from.require<std::int64_t>("runs", at_least(std::int64_t{0}));
  width.cells = from.require<std::int64_t>("cells", at_least(std::int64_t{0}));
  width.half_width = from.require<double>("half_width", between(0.0, kWidestError));
  return width;
}

HeldOutRun read_run(const JsonReader& from) {
  from.reject_unknown_keys({"id", "source", "stack", "gpu", "model", "exposed_share", "log_error",
                            "log_error_cell_out", "log_error_source_out"});
  HeldOutRun run;
  using Text = std::pair<const char*, std::string*>;
  for (const auto& [key, text] : std::array<Text, 5>{{{"id", &run.id},
                                                      {"source", &run.source},
                                                      {"stack", &run.stack},
                                                      {"gpu", &run.gpu},
                                                      {"model", &run.model}}}) {
    *text = from.require<std::string>(key);
  }
  run.exposed_share = from.require<double>("exposed_share", between(0.0, 1.0));
  using Number = std::pair<const char*, double*>;
  for (const auto& [key, error] :
       std::array<Number, 3>{{{"log_error", &run.log_error},
                              {"log_error_cell_out", &run.log_error_cell_out},
                              {"log_error_source_out", &run.log_error_source_out}}}) {
    *error = from.require<double>(key, between(-kWidestError, kWidestError));
  }
  return run;
}

/// Five decimals: a thousandth of a percent.
double to_five_decimals(double value) {
  return std::round(value * 1e5) / 1e5;
}

MemoryWidths read_memory(const JsonReader& from) {
  return {from.require<double>("more", between(0.0, kWidestError)),
          from.require<double>("less", between(0.0, kWidestError))};
}

/// Rounded up: a width is the error of a run, which it has to hold.
ordered_json memory_json(const MemoryWidths& widths) {
  return {{"more", std::ceil(widths.more * 1e5) / 1e5},
          {"less", std::ceil(widths.less * 1e5) / 1e5}};
}

JsonFile open(const std::filesystem::path& file) {
  JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kResidualsSchema});
  root.reject_unknown_keys({"schema", "source", "command", "date", "level", "widths", "memory",
                            "ranges", "seen", "runs"});
  return document;
}

}  // namespace

std::string_view name_of(Novelty novelty) {
  return name_in(kNoveltyNames, novelty);
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
  for (const JsonReader& width : root.require_array("widths")) {
    result.widths.push_back(read_width(width));
    if (static_cast<std::size_t>(result.widths.back().novelty) + 1 != result.widths.size()) {
      width.fail("novelty", "each once, in the order cell, stack_gpu, source_only, nothing");
    }
  }
  if (!result.widths.empty() && result.widths.size() != kNoveltyNames.size()) {
    root.fail("widths", "none, or one for each novelty");
  }
  const JsonReader memory = root.require_object("memory");
  memory.reject_unknown_keys({"runs", "more", "less", "new_software"});
  result.memory_runs = memory.require<std::int64_t>("runs", at_least(std::int64_t{0}));
  result.memory = read_memory(memory);
  const JsonReader others = memory.require_object("new_software");
  others.reject_unknown_keys({"sources", "more", "less"});
  result.memory_sources = others.require<std::int64_t>("sources", at_least(std::int64_t{0}));
  result.memory_of_others = read_memory(others);
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
  static KeptFiles<Uncertainty> kept(&load_uncertainty);
  return std::filesystem::exists(file) ? *kept.get(file) : Uncertainty{};
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
  ordered_json json{{"schema", kResidualsSchema},     {"source", uncertainty.source},
                    {"command", uncertainty.command}, {"date", uncertainty.date},
                    {"level", uncertainty.level},     {"widths", ordered_json::array()}};
  for (const NoveltyWidth& width : uncertainty.widths) {
    json["widths"].push_back({{"novelty", name_of(width.novelty)},
                              {"errors", width.errors},
                              {"runs", width.runs},
                              {"cells", width.cells},
                              {"half_width", to_five_decimals(width.half_width)}});
  }
  json["memory"] = {{"runs", uncertainty.memory_runs}};
  json["memory"].update(memory_json(uncertainty.memory));
  json["memory"]["new_software"] = {{"sources", uncertainty.memory_sources}};
  json["memory"]["new_software"].update(memory_json(uncertainty.memory_of_others));
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
                            {"model", run.model},
                            {"exposed_share", to_five_decimals(run.exposed_share)},
                            {"log_error", to_five_decimals(run.log_error)},
                            {"log_error_cell_out", to_five_decimals(run.log_error_cell_out)},
                            {"log_error_source_out", to_five_decimals(run.log_error_source_out)}});
  }
  write_file_atomically(file, json.dump(1) + "\n");
}

}  // namespace shardwright::profiles
