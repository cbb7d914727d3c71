// SPDX-License-Identifier: Apache-2.0
// How `validate` shows what predictions are worth to a stranger: published runs of sources to which
// nothing was fitted, and how often intervals held that were made without a run's source.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

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

}  // namespace shardwright::cli
