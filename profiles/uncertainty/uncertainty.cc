// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/uncertainty.h"

#include <algorithm>
#include <array>
#include <utility>

#include "profiles/data_dir.h"
#include "profiles/kept_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

constexpr std::string_view kResidualsSchema = "shardwright.residuals/1.0";
constexpr double kWidestError = 10;  // a factor of 20,000
constexpr std::array<std::string_view, kNovelties> kNoveltyNames = {"cell", "stack_gpu",
                                                                    "source_only", "nothing"};

HeldOutRun read_run(const JsonReader& from) {
  from.reject_unknown_keys({"id", "source", "stack", "gpu", "model", "log_error_fitted",
                            "log_error", "log_error_cell_out", "log_error_source_out", "inside"});
  HeldOutRun run;
  using Text = std::pair<const char*, std::string*>;
  for (const auto& [key, text] : std::array<Text, 5>{{{"id", &run.id},
                                                      {"source", &run.source},
                                                      {"stack", &run.stack},
                                                      {"gpu", &run.gpu},
                                                      {"model", &run.model}}}) {
    *text = from.require<std::string>(key);
  }
  using Number = std::pair<const char*, double*>;
  for (const auto& [key, error] :
       std::array<Number, 4>{{{"log_error_fitted", &run.log_error_fitted},
                              {"log_error", &run.log_error},
                              {"log_error_cell_out", &run.log_error_cell_out},
                              {"log_error_source_out", &run.log_error_source_out}}}) {
    *error = from.require<double>(key, between(-kWidestError, kWidestError));
  }
  const std::vector<bool> inside = from.require_list<bool>("inside");
  if (inside.size() != run.inside.size()) from.fail("inside", "three of true and false");
  std::copy(inside.begin(), inside.end(), run.inside.begin());
  return run;
}

std::array<double, 2> read_range(const JsonReader& from, const std::string& key) {
  const std::vector<double> pair = from.require_list<double>(key);
  if (pair.size() != 2 || !(pair[0] <= pair[1])) from.fail(key, "two rising numbers");
  return {pair[0], pair[1]};
}

MovedConstant read_constant(const JsonReader& from) {
  from.reject_unknown_keys({"name", "value", "run_out", "source_out"});
  return {from.require<std::string>("name"), from.require<double>("value", above(0.0)),
          read_range(from, "run_out"), read_range(from, "source_out")};
}

MemoryWidths read_memory(const JsonReader& from) {
  return {from.require<double>("more", between(0.0, kWidestError)),
          from.require<double>("less", between(0.0, kWidestError))};
}

JsonFile open(const std::filesystem::path& file) {
  JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kResidualsSchema});
  root.reject_unknown_keys({"schema", "source", "command", "date", "level", "memory",
                            "simulated_coverage", "ranges", "seen", "constants", "runs"});
  root.require_object("memory").reject_unknown_keys(
      {"runs", "more", "less", "inside_run_out", "inside_source_out", "new_software"});
  return document;
}

}  // namespace

std::string_view name_of(Novelty novelty) {
  return name_in(kNoveltyNames, novelty);
}

std::string shipped_residuals() {
  return data_dir() / "fitted" / "residuals.json";
}

Uncertainty load_uncertainty(const std::string& file) {
  const JsonFile document = open(file);
  const JsonReader root = document.root();
  Uncertainty result;
  const JsonReader memory = root.require_object("memory");
  result.memory = read_memory(memory);
  const JsonReader others = memory.require_object("new_software");
  others.reject_unknown_keys({"sources", "more", "less"});
  result.memory_of_others = read_memory(others);
  const JsonReader ranges = root.require_object("ranges");
  for (const std::string& name : ranges.keys()) {
    result.ranges[name] = read_range(ranges, name);
  }
  const JsonReader seen = root.require_object("seen");
  for (const std::string& kind : seen.keys()) {
    result.seen[kind] = seen.require_list<std::string>(kind);
  }
  return result;
}

Uncertainty load_uncertainty() {
  const std::string file = shipped_residuals();
  static KeptFiles<Uncertainty> kept(&load_uncertainty);
  return std::filesystem::exists(file) ? *kept.get(file) : Uncertainty{};
}

HeldOutRecord load_held_out(const std::string& file) {
  const JsonFile document = open(file);
  const JsonReader root = document.root();
  const auto count = [](const JsonReader& from, const char* key) {
    return from.require<std::int64_t>(key, at_least(std::int64_t{0}));
  };
  HeldOutRecord result;
  result.level = root.require<double>("level", between(0.5, 0.999));
  result.simulated_coverage = root.require<double>("simulated_coverage", between(0.0, 1.0));
  const JsonReader memory = root.require_object("memory");
  result.peaks = count(memory, "runs");
  result.peaks_run_out = count(memory, "inside_run_out");
  result.peaks_source_out = count(memory, "inside_source_out");
  for (const JsonReader& constant : root.require_array("constants")) {
    result.constants.push_back(read_constant(constant));
  }
  for (const JsonReader& run : root.require_array("runs")) result.runs.push_back(read_run(run));
  return result;
}

}  // namespace shardwright::profiles
