// SPDX-License-Identifier: Apache-2.0
// The words of a Python module, with where its lines are indented.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli::settings_language {

struct PythonWord {
  enum class Kind : std::uint8_t {
    kEnd,
    kNewline,
    kIndent,
    kDedent,
    kName,
    kNumber,
    kString,
    kSymbol
  };
  Kind kind = Kind::kEnd;
  std::string_view text;           // of a string: what is between its quotes
  std::size_t begin = 0, end = 0;  // in the file
};

/// Ends with one kEnd. `made` keeps texts that are not in the file as they are. Throws Error naming
/// the file where there are too many.
std::vector<PythonWord> python_words(std::string_view text, std::deque<std::string>& made,
                                     const std::string& name);

}  // namespace shardwright::cli::settings_language
