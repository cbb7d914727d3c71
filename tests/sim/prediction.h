// SPDX-License-Identifier: Apache-2.0
// What tests of predictions share: models and machines that ship, and what is refused.
#pragma once

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"
#include "sim/strategies/lower.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"

namespace shardwright::sim {

using shardwright::testing::refusal_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// A model that ships.
inline Model shipped(const std::string& name) {
  return load_model(profiles::data_dir() / "models", name);
}

}  // namespace shardwright::sim
