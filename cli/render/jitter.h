// SPDX-License-Identifier: Apache-2.0
// How `predict --jitter` is told: in a sentence, and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/explain/jitter.h"

namespace shardwright::cli {

std::string jitter_sentence(const sim::Jitter& jitter);
nlohmann::ordered_json jitter_json(const sim::Jitter& jitter);

}  // namespace shardwright::cli
