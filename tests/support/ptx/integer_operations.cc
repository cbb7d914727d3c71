// SPDX-License-Identifier: Apache-2.0
// Arithmetic of integers, bits and predicates. Sums and products wrap around, shifts by the width
// and more leave zeros or signs, a quotient by zero is all ones, as on a GPU.
#include <algorithm>
#include <limits>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
constexpr bool overflows(T a, T b) {
  return std::is_signed_v<T> && a == std::numeric_limits<T>::min() && b == static_cast<T>(-1);
}

template <class T>
void add_arithmetic(Operations& table, const std::string& type) {
  using U = Unsigned<T>;
  table["add." + type] = lanewise<U, U, U>([](U a, U b) { return static_cast<U>(a + b); });
  table["sub." + type] = lanewise<U, U, U>([](U a, U b) { return static_cast<U>(a - b); });
  table["neg." + type] = lanewise<U, U>([](U a) { return static_cast<U>(U{0} - a); });
  table["mul.lo." + type] = lanewise<U, U, U>([](U a, U b) { return static_cast<U>(a * b); });
  table["mad.lo." + type] =
      lanewise<U, U, U, U>([](U a, U b, U c) { return static_cast<U>(a * b + c); });
  table["div." + type] = lanewise<T, T, T>([](T a, T b) {
    if (b == 0) return static_cast<T>(~U{0});
    return overflows(a, b) ? a : static_cast<T>(a / b);
  });
  table["rem." + type] = lanewise<T, T, T>([](T a, T b) {
    if (b == 0) return a;
    return overflows(a, b) ? T{0} : static_cast<T>(a % b);
  });
  table["min." + type] = lanewise<T, T, T>([](T a, T b) { return std::min(a, b); });
  table["max." + type] = lanewise<T, T, T>([](T a, T b) { return std::max(a, b); });
  table["shr." + type] = lanewise<T, T, std::uint32_t>([](T a, std::uint32_t by) {
    constexpr std::uint32_t kLast = 8 * sizeof(T) - 1;
    if (by > kLast && std::is_unsigned_v<T>) return T{0};
    return static_cast<T>(a >> std::min(by, kLast));
  });
}

template <class Wide, class T>
void add_wide_product(Operations& table, const std::string& type) {
  table["mul.wide." + type] = lanewise<Wide, T, T>([](T a, T b) { return Wide{a} * b; });
}

template <class T>
void add_bits(Operations& table, const std::string& type) {
  table["and." + type] = lanewise<T, T, T>([](T a, T b) { return static_cast<T>(a & b); });
  table["or." + type] = lanewise<T, T, T>([](T a, T b) { return static_cast<T>(a | b); });
  table["xor." + type] = lanewise<T, T, T>([](T a, T b) { return static_cast<T>(a ^ b); });
  if constexpr (std::is_same_v<T, bool>) {
    table["not." + type] = lanewise<T, T>([](T a) { return !a; });
  } else {
    table["not." + type] = lanewise<T, T>([](T a) { return static_cast<T>(~a); });
    table["shl." + type] = lanewise<T, T, std::uint32_t>(
        [](T a, std::uint32_t by) { return by < 8 * sizeof(T) ? static_cast<T>(a << by) : T{0}; });
  }
}

/// `length` bits of `field` in the place of those of `into` from `position` on.
template <class T>
T insert_bits(T field, T into, std::uint32_t position, std::uint32_t length) {
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  position &= 0xff;
  length &= 0xff;
  if (position >= kBits || length == 0) return into;
  const T ones = length >= kBits ? ~T{0} : (T{1} << length) - 1;
  return (into & ~(ones << position)) | ((field & ones) << position);
}

/// Four bytes out of the eight of b:a; the eighth bit of a selector repeats the byte's sign.
std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selectors) {
  const std::uint64_t all = std::uint64_t{b} << 32 | a;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint32_t selector = selectors >> 4 * i & 0xf;
    std::uint32_t byte = static_cast<std::uint32_t>(all >> 8 * (selector & 7)) & 0xff;
    if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

}  // namespace

void add_integer_operations(Operations& table) {
  add_arithmetic<std::int32_t>(table, "s32");
  add_arithmetic<std::uint32_t>(table, "u32");
  add_arithmetic<std::int64_t>(table, "s64");
  add_arithmetic<std::uint64_t>(table, "u64");
  add_wide_product<std::int64_t, std::int32_t>(table, "s32");
  add_wide_product<std::uint64_t, std::uint32_t>(table, "u32");
  add_bits<bool>(table, "pred");
  add_bits<std::uint16_t>(table, "b16");
  add_bits<std::uint32_t>(table, "b32");
  add_bits<std::uint64_t>(table, "b64");
  table["bfi.b32"] =
      lanewise<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(
          [](auto... operands) { return insert_bits<std::uint32_t>(operands...); });
  table["bfi.b64"] =
      lanewise<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t>(
          [](auto... operands) { return insert_bits<std::uint64_t>(operands...); });
  table["prmt.b32"] = lanewise<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(
      [](auto... operands) { return permute_bytes(operands...); });
}

}  // namespace ptx
