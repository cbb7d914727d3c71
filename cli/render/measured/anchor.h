// SPDX-License-Identifier: Apache-2.0
// What one measured step moves, and where it carries to, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/import/step_log.h"
#include "sim/calibrate/anchor.h"
#include "sim/job.h"

namespace shardwright::cli {

/// The measured plan on another number of GPUs: with the base's values and with those that moved.
struct CarriedSize {
  sim::Prediction before, after;
};

struct AnchorReport {
  const sim::Job& job;
  sim::AnchorFit fit;
  std::string log;  // what kind it is; empty: the time was given
  profiles::MedianStep measured;
  std::vector<CarriedSize> sizes;
  std::string out;  // the file that was written; empty: none
};

std::string anchor_text(const AnchorReport& report, const Terminal& terminal);
nlohmann::ordered_json anchor_json(const AnchorReport& report);

std::string anchored_series_text(const std::vector<sim::AnchoredSeries>& series,
                                 const Terminal& terminal);
nlohmann::ordered_json anchored_series_json(const std::vector<sim::AnchoredSeries>& series);

}  // namespace shardwright::cli
