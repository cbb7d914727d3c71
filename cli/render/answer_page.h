// SPDX-License-Identifier: Apache-2.0
// The page of one answer: one HTML file that opens without a network. It holds the answer as JSON,
// which the planner page's own modules draw (cli/page/answer_page.js), and a table of its numbers
// for whoever runs no scripts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwright::cli {

/// `page`: {"answer": what predict --explain or size print with --json, or null; "provenance":
/// [[what, words], ...]; "timelines", "measured", "comparison", "tuning" as answer_page.js reads
/// them}.
std::string answer_page(const std::string& title, const nlohmann::ordered_json& page);

/// The first rows of "provenance": program, time and command line.
nlohmann::ordered_json page_provenance(const std::string& command_line);

/// cli/page/style.css, and the modules as one script, put here by CMake.
const char* answer_page_style();
const char* answer_page_script();

}  // namespace shardwright::cli
