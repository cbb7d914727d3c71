// SPDX-License-Identifier: Apache-2.0
// How `validate` shows what predictions are worth to a stranger: published runs of sources to which
// nothing was fitted, and how often intervals held that were made without a run's source.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/score/validation.h"

namespace shardwright::cli {

/// By source, and that these runs are for reporting: nobody may tune by them.
std::string strangers_text(const sim::Validation& strangers, const Terminal& out);
/// {time, interval, memory, memory_interval, by_source, rows, use}.
nlohmann::ordered_json strangers_json(const sim::Validation& strangers);

/// Empty where nothing is known.
std::string novelty_coverage_text(const profiles::NoveltyWidths& widths, const Terminal& out);
/// {level, runs, inside, by_class, by_novelty}; null where nothing is known.
nlohmann::ordered_json novelty_coverage_json(const profiles::NoveltyWidths& widths);

// The errors of `validate` by framework, the newest release first.

/// A line for each framework and, below it, for each year of its releases.
std::string by_framework_text(const std::vector<sim::FrameworkScore>& scores, const Terminal& out);
/// [{"framework", "newest", "n", "mape", "median", "worst", "interval": {n, inside},
/// "source_left_out": {n, mape, median, worst}, "years": [{"year", "releases": [..], as above}]}].
nlohmann::ordered_json by_framework_json(const std::vector<sim::FrameworkScore>& scores);

// The errors of `validate` by GPU: what a buyer of one kind wants to know first.

/// Times and peaks of each GPU that the runs were on: n, mean, median, worst.
std::string by_gpu_text(const sim::Validation& validation, const Terminal& out);
/// {"a100-80g": {"time": {n, mape, median, worst}, "memory": {...}}}.
nlohmann::ordered_json by_gpu_json(const sim::Validation& validation);

// How good choices among measured layouts would have been, as `validate` shows it.

/// Empty where no layouts can be compared. The groups with the largest regret, all of them with
/// `rows`, and what they come to.
std::string choices_text(const sim::ChoiceScore& score, bool rows, const Terminal& out);
/// {groups, kendall_tau, regret_mean, regret_worst, random_regret_mean, by_group}.
nlohmann::ordered_json choices_json(const sim::ChoiceScore& score);

}  // namespace shardwright::cli
