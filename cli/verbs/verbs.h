// SPDX-License-Identifier: Apache-2.0
// The list of verbs, in the order in which --help shows them.
//
// A build with SHARDWRIGHT_RUN=OFF has only those that plan: it needs no executor and none of its
// libraries.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verbs/verb.h"

namespace shardwright::cli {

/// A function of a file that a planner-only build leaves out: there it is null.
#ifdef SHARDWRIGHT_PLANNER_ONLY
#define SHARDWRIGHT_BEYOND_PLANNING(function) nullptr
#else
#define SHARDWRIGHT_BEYOND_PLANNING(function) function
#endif

/// A function of a file that starts processes, which a page in a browser cannot: there it is null.
#ifdef __EMSCRIPTEN__
#define SHARDWRIGHT_WITH_PROCESSES(function) nullptr
#else
#define SHARDWRIGHT_WITH_PROCESSES(function) function
#endif

std::vector<std::unique_ptr<Verb>> make_verbs();

/// The names of those that this build leaves out.
std::vector<std::string> absent_verbs();
/// The Error of asking for one ("run", "inspect run"), with the code of a missing library.
Error not_in_this_build(std::string_view what);

std::unique_ptr<Verb> make_predict_verb();
std::unique_ptr<Verb> make_tune_verb();
std::unique_ptr<Verb> make_size_verb();
std::unique_ptr<Verb> make_run_verb();
std::unique_ptr<Verb> make_compare_verb();
std::unique_ptr<Verb> make_measure_verb();
std::unique_ptr<Verb> make_calibrate_verb();
std::unique_ptr<Verb> make_anchor_verb();
std::unique_ptr<Verb> make_validate_verb();
std::unique_ptr<Verb> make_inspect_verb();
std::unique_ptr<Verb> make_export_verb();
std::unique_ptr<Verb> make_kit_verb();
std::unique_ptr<Verb> make_import_config_verb();
std::unique_ptr<Verb> make_import_memory_verb();
std::unique_ptr<Verb> make_report_verb();
std::unique_ptr<Verb> make_prices_verb();
std::unique_ptr<Verb> make_mcp_verb();
std::unique_ptr<Verb> make_doctor_verb();
std::unique_ptr<Verb> make_completion_verb();

}  // namespace shardwright::cli
