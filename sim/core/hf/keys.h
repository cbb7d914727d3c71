// SPDX-License-Identifier: Apache-2.0
// Reading single keys of a Hugging Face config.json with the bounds of model_limits: the helpers
// that the family readers share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

using namespace model_limits;

/// Throws Error where the value of `key` is not `neutral` (a number; false is 0 and true is 1),
/// null or absent.
void refuse(const JsonReader& config, std::string_view key, double neutral = 0,
            std::string_view why = "this is not modelled");

/// Of keys that files call one way or another, "moe_topk|num_experts_per_tok", the first that is
/// there; the last where none is.
std::string_view key_of(const JsonReader& config, std::string_view either);

/// An integer from 1 to `most`. `key` may be several, as for key_of.
std::int64_t size(const JsonReader& config, std::string_view key, std::int64_t most);
std::int64_t size_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                     std::int64_t most);
/// An integer from 0 to `most`; the same.
std::int64_t count_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                      std::int64_t most);

/// True when the key is there, even with null: null and absent differ where a class has a default.
bool present(const JsonReader& config, std::string_view key);
/// Notes keys as known that say nothing, or nothing new.
void pass_over(const JsonReader& config, std::initializer_list<std::string_view> keys);

Activation activation(const JsonReader& config, std::string_view key, std::string_view fallback);

/// The words of a list that spaces separate.
std::vector<std::string_view> words_of(std::string_view list);

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
