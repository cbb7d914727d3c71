// SPDX-License-Identifier: Apache-2.0
// Models that ship, for tests of the tuner.
#pragma once

#include <cstdint>
#include <string>

#include "profiles/data_file.h"
#include "sim/core/hf/config.h"
#include "sim/core/model.h"

namespace shardwright::tuner {

/// `layers` replaces the model's own number of them, unless it is 0.
inline Model model_of(const std::string& name, std::int64_t layers = 0) {
  Model model = load_model(profiles::data_dir() / "models", name);
  if (layers > 0) model.layers = layers;
  return model;
}

}  // namespace shardwright::tuner
