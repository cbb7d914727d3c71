// SPDX-License-Identifier: Apache-2.0
// Infinity and NaN, which Python's json writes into a config.json and JSON does not have.
#pragma once

#include <string>
#include <string_view>

namespace shardwright::hf {

/// `text` with null in place of Infinity, -Infinity and NaN outside strings: no key that is read
/// may have such a value, and a key with null counts as absent.
std::string without_python_literals(std::string_view text);

}  // namespace shardwright::hf
