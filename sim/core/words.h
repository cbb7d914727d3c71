// SPDX-License-Identifier: Apache-2.0
// Enumerators by their words: the contract's, in the order of the enumeration.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "sim/core/check.h"

namespace shardwright {

template <typename Enum, std::size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  SHARDWRIGHT_CHECK(index < N, "no name for enumerator {}", index);
  return names[index];
}

/// Nothing for a word that is none of them.
template <typename Enum, std::size_t N>
std::optional<Enum> value_in(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<Enum>(at - names.begin());
}

}  // namespace shardwright
