// SPDX-License-Identifier: Apache-2.0
// An answer that an assistant can read: the document of a verb below a number of letters.
//
// Only as far as it has to: plans that were weighed are told in words, then what is told elsewhere
// in the same document goes (every option of `size`, beside the best of each cluster), then lists
// of objects and sentences are shortened from their ends, longest first; nulls and digits that
// nobody reads always. What was left out is named, and `full=true` of the call brings all of it.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwright::cli {

inline constexpr std::size_t kLongestAnswer = 8000;  // letters

/// Unchanged where it is short enough as it is.
nlohmann::ordered_json brief_answer(const nlohmann::ordered_json& document,
                                    std::size_t most = kLongestAnswer);

}  // namespace shardwright::cli
