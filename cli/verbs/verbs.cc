// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/verbs.h"

#include <fmt/core.h>

#include <array>

namespace shardwright::cli {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Verb> (*make)();
};

constexpr std::array kVerbs = {
    Entry{"predict", make_predict_verb},
    Entry{"tune", make_tune_verb},
    Entry{"size", make_size_verb},
    Entry{"run", SHARDWRIGHT_BEYOND_PLANNING(make_run_verb)},
    Entry{"compare", SHARDWRIGHT_BEYOND_PLANNING(make_compare_verb)},
    Entry{"measure", SHARDWRIGHT_BEYOND_PLANNING(make_measure_verb)},
    Entry{"calibrate", make_calibrate_verb},
    Entry{"anchor", make_anchor_verb},
    Entry{"validate", make_validate_verb},
    Entry{"inspect", make_inspect_verb},
    Entry{"export", make_export_verb},
    Entry{"kit", make_kit_verb},
    Entry{"import-config", make_import_config_verb},
    Entry{"import-memory", make_import_memory_verb},
    Entry{"report", make_report_verb},
    Entry{"prices", make_prices_verb},
    Entry{"mcp", SHARDWRIGHT_WITH_PROCESSES(make_mcp_verb)},
    Entry{"doctor", SHARDWRIGHT_BEYOND_PLANNING(make_doctor_verb)},
    Entry{"completion", make_completion_verb},
};

}  // namespace

std::vector<std::unique_ptr<Verb>> make_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  for (const Entry& entry : kVerbs) {
    if (entry.make != nullptr) verbs.push_back(entry.make());
  }
  return verbs;
}

std::vector<std::string> absent_verbs() {
  std::vector<std::string> names;
  for (const Entry& entry : kVerbs) {
    if (entry.make == nullptr) names.emplace_back(entry.name);
  }
  return names;
}

Error not_in_this_build(std::string_view what) {
  return Error(fmt::format("shardwright {} is not in this build, which only plans; a build with "
                           "SHARDWRIGHT_RUN=ON has it.",
                           what),
               ExitCode::kMissingDevice);
}

}  // namespace shardwright::cli
