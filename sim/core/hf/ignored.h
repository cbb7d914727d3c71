// SPDX-License-Identifier: Apache-2.0
// What a config.json says that nobody asks for: told once, instead of passed over in silence.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "sim/core/base/json_file.h"

namespace shardwright::hf {

/// "attention_dropout is 0.1", "attn_pdrop and resid_pdrop are 0.1": what drops activations out in
/// training; empty where every probability is 0. Heads for other tasks do not count.
std::string dropout_of(const JsonReader& config);

/// The keys that hold something, were not among those `asked` for, and are not known to leave
/// arithmetic, memory and time alone. In alphabetical order.
std::vector<std::string> ignored_keys(const JsonReader& config,
                                      const std::set<std::string, std::less<>>& asked);

}  // namespace shardwright::hf
