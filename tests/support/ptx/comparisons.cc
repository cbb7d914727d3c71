// SPDX-License-Identifier: Apache-2.0
// setp and selp. Comparisons of floats are false with a NaN, those that end in u are true.
#include <cmath>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

template <class T>
void add_ordered(Operations& table, const std::string& type) {
  table["setp.eq." + type] = lanewise<bool, T, T>([](T a, T b) { return a == b; });
  table["setp.lt." + type] = lanewise<bool, T, T>([](T a, T b) { return a < b; });
  table["setp.le." + type] = lanewise<bool, T, T>([](T a, T b) { return a <= b; });
  table["setp.gt." + type] = lanewise<bool, T, T>([](T a, T b) { return a > b; });
  table["setp.ge." + type] = lanewise<bool, T, T>([](T a, T b) { return a >= b; });
  if constexpr (std::is_integral_v<T>) {
    table["setp.ne." + type] = lanewise<bool, T, T>([](T a, T b) { return a != b; });
  } else {
    table["setp.ne." + type] = lanewise<bool, T, T>([](T a, T b) { return a < b || a > b; });
    table["setp.neu." + type] = lanewise<bool, T, T>([](T a, T b) { return !(a == b); });
    table["setp.ltu." + type] = lanewise<bool, T, T>([](T a, T b) { return !(a >= b); });
    table["setp.leu." + type] = lanewise<bool, T, T>([](T a, T b) { return !(a > b); });
    table["setp.gtu." + type] = lanewise<bool, T, T>([](T a, T b) { return !(a <= b); });
    table["setp.geu." + type] = lanewise<bool, T, T>([](T a, T b) { return !(a < b); });
    table["setp.nan." + type] =
        lanewise<bool, T, T>([](T a, T b) { return std::isnan(a) || std::isnan(b); });
  }
}

template <class T>
void add_selection(Operations& table, const std::string& kinds, const std::string& bits) {
  for (const char kind : kinds) {
    table[std::string("selp.") + kind + bits] =
        lanewise<T, T, T, bool>([](T a, T b, bool first) { return first ? a : b; });
  }
}

}  // namespace

void add_comparisons(Operations& table) {
  add_ordered<std::int16_t>(table, "s16");
  add_ordered<std::uint16_t>(table, "u16");
  add_ordered<std::int32_t>(table, "s32");
  add_ordered<std::uint32_t>(table, "u32");
  add_ordered<std::int64_t>(table, "s64");
  add_ordered<std::uint64_t>(table, "u64");
  table["setp.eq.b32"] = lanewise<bool, std::uint32_t, std::uint32_t>(
      [](std::uint32_t a, std::uint32_t b) { return a == b; });
  table["setp.eq.b64"] = lanewise<bool, std::uint64_t, std::uint64_t>(
      [](std::uint64_t a, std::uint64_t b) { return a == b; });
  add_ordered<float>(table, "f32");
  add_ordered<double>(table, "f64");
  add_selection<std::uint16_t>(table, "bsu", "16");
  add_selection<std::uint32_t>(table, "bsuf", "32");
  add_selection<std::uint64_t>(table, "bsuf", "64");
}

}  // namespace ptx
