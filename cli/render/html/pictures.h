// SPDX-License-Identifier: Apache-2.0
// The drawings of a report: the step and one of its layers as rows of spans, memory against its
// limit, where the time goes, and the plans that `tune` kept.
#pragma once

#include <string>
#include <vector>

#include "cli/render/html/strip.h"
#include "sim/predict.h"

namespace shardwright::cli::html {

/// The whole step, coloured by phase, strips under each other on one scale; under the first its
/// memory where there are samples of it, against a limit where that is not 0.
std::string step_picture(const std::vector<Strip>& strips, Bytes limit_bytes = 0);

/// One layer forward or backward, coloured by kind. Empty when no strip has it.
std::string layer_picture(const std::vector<Strip>& strips, std::int32_t layer, bool backward);

/// A GPU's memory at its peak by category, against what is usable.
std::string memory_picture(const sim::MemoryPrediction& memory);

/// The step's time by what it goes to.
std::string time_picture(const sim::TimePrediction& time);

/// The predicted time with its interval.
std::string interval_picture(const sim::TimePrediction& time);

/// A step of a pipeline: of every stage its first rank.
struct DrawnPipeline {
  std::string title;  // "predicted"
  Timeline timeline;
};
/// The step whose length is the median of the timeline's steps.
Timeline usual_step(const Timeline& timeline);
/// Passes, bubbles and the tail of every stage: the whole steps under each other on one scale, and
/// the first and last passes of those that have too many to tell them apart.
std::string pipeline_picture(const std::vector<DrawnPipeline>& pipelines);

/// A bar for every stage, by category, against what is usable.
std::string stage_memory_picture(const sim::Prediction& prediction);

/// The busiest stage's time by what it goes to: communication by group, the bubble.
std::string cause_picture(const sim::Prediction& prediction);

struct PlanPoint {
  double x = 0, y = 0;  // tokens per second, GiB of memory
  std::string words;
  bool best = false;
};
/// Speed against memory.
std::string plans_picture(const std::vector<PlanPoint>& points, double usable_gib);

}  // namespace shardwright::cli::html
