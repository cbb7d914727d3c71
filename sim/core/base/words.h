// SPDX-License-Identifier: Apache-2.0
// Words: in lower case, and enumerators by the contract's, in the order of the enumeration.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/base/check.h"

namespace shardwright {

template <typename Enum, std::size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  SHARDWRIGHT_CHECK(index < N, "no name for enumerator {}", index);
  return names[index];
}

/// ASCII letters in lower case.
inline std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// Nothing for a word that is none of them.
template <typename Enum, std::size_t N>
std::optional<Enum> value_in(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<Enum>(at - names.begin());
}

}  // namespace shardwright
