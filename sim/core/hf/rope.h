// SPDX-License-Identifier: Apache-2.0
// Rotary embeddings of a Hugging Face config.json, in both generations of its keys.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright {

/// What a family calls the two plain keys, and the fraction that it rotates when nothing is said.
struct RopeKeys {
  std::string_view theta_key = "rope_theta";
  std::string_view fraction_key = "partial_rotary_factor";
  double fraction = 1.0;
  /// Whether layers may have angles of their own (gemma3: full and sliding attention), and whether
  /// angles may be those of rows and columns (mrope). Angles cost nothing; such models are planned.
  bool by_layer = false;
  bool sections = false;
};

/// Reads rope_parameters (Transformers 5), or rope_theta with rope_scaling (before). Throws Error
/// naming the key for types other than default, dynamic, linear, llama3, yarn and longrope, for
/// parameters per layer type unless `keys` allow them (then those of full attention are read), and
/// when both generations are there and disagree. Of yarn and longrope only the type is kept, of
/// dynamic nothing.
Rope read_rope(const JsonReader& config, std::int64_t head_dim, const RopeKeys& keys);

/// Whether the type is dynamic: angles depend on the longest sequence that was met.
bool stretches_dynamically(const JsonReader& config);

}  // namespace shardwright
