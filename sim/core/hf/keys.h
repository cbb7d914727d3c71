// SPDX-License-Identifier: Apache-2.0
// Reading single keys of a Hugging Face config.json with the bounds of model_limits: the helpers
// that the family readers share.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// A key whose value must be `neutral` (a number; false is 0 and true is 1), null or absent.
struct NeutralKey {
  std::string_view key;
  double neutral;
};
void require_neutral(const JsonReader& config, const NeutralKey& entry, std::string_view why);
/// require_neutral for what is simply not modelled.
void refuse(const JsonReader& config, std::string_view key, double neutral);

/// An integer from 1 to `most`.
std::int64_t size(const JsonReader& config, std::string_view key, std::int64_t most);
std::int64_t size_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                     std::int64_t most);

/// True when the key is there, even with null: null and absent differ where a class has a default.
bool present(const JsonReader& config, std::string_view key);

Activation activation(const JsonReader& config, std::string_view key, std::string_view fallback);
double norm_eps(const JsonReader& config, std::string_view key, double fallback);

/// The head dimension where no key gives it: hidden / heads, which must divide.
std::int64_t divided_head_dim(const JsonReader& config, const Model& m, std::string_view heads_key);

/// Sets the window of the layers that have one and their number, or 0 and 0; needs m.family and
/// m.layers.
void set_sliding_window(const JsonReader& config, Model& m);

}  // namespace shardwright::hf
