// SPDX-License-Identifier: Apache-2.0
// Reading single keys of a Hugging Face config.json with the bounds of model_limits: the helpers
// that the family readers share.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

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

// Infinity and NaN, which Python's json writes into a config.json and JSON does not have.

/// `text` with null in place of Infinity, -Infinity and NaN outside strings: no key that is read
/// may have such a value, and a key with null counts as absent.
std::string without_python_literals(std::string_view text);

// What a config.json says that nobody asks for: told once, instead of passed over in silence.

/// "attention_dropout is 0.1", "attn_pdrop and resid_pdrop are 0.1": what drops activations out in
/// training; empty where every probability is 0. Heads for other tasks do not count.
std::string dropout_of(const JsonReader& config);

/// The keys that hold something, were not among those `asked` for, and are not known to leave
/// arithmetic, memory and time alone. In alphabetical order.
std::vector<std::string> ignored_keys(const JsonReader& config,
                                      const std::set<std::string, std::less<>>& asked);

// Families of language models that are known by name and have something that Model has not.

/// What models of this model_type (or class, of files that lack one) have that is not modelled, as
/// in "Mamba-2 layers"; "" of a type that is modelled or that nobody here has met.
std::string_view unmodelled_part(std::string_view type);

}  // namespace shardwright::hf
