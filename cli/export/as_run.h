// SPDX-License-Identifier: Apache-2.0
// What a trainer will do with exported settings, predicted.
#pragma once

#include <optional>
#include <string>

#include "cli/export/settings.h"
#include "sim/job.h"
#include "sim/predict.h"

namespace shardwright::cli {

struct AsRun {
  sim::Job inputs;  // with the plan that the trainer follows
  std::optional<sim::Prediction> prediction;
  std::string refusal;  // why there is none
};

AsRun predict_as_run(const sim::Job& inputs, const TrainerSettings& settings);

}  // namespace shardwright::cli
