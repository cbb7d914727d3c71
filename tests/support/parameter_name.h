// SPDX-License-Identifier: Apache-2.0
// What instances of a test with parameters are called. The type of a parameter says once, with
// PrintTo or name_of, what its values are: failures print that, and names are made of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <concepts>
#include <ostream>
#include <string>
#include <string_view>

namespace shardwright {

template <class T>
requires requires(const T& value) {
  { name_of(value) } -> std::convertible_to<std::string_view>;
}
void PrintTo(const T& value, std::ostream* out) {
  *out << name_of(value);
}

namespace profiles {
using shardwright::PrintTo;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline constexpr auto parameter_name = []<class T>(const ::testing::TestParamInfo<T>& info) {
  std::string name;
  if constexpr (std::convertible_to<T, std::string>) {
    name = info.param;
  } else {
    name = ::testing::PrintToString(info.param);
  }
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
};

}  // namespace shardwright
