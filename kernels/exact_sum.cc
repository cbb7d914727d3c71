// SPDX-License-Identifier: Apache-2.0
#include "kernels/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace shardwright::kernels {
namespace {

constexpr std::size_t kDigits = ExactSum::kWords - 1;
constexpr int kUnitExponent = -320;
// A digit grows by less than 2^33 per addend, so this many cannot overflow an int64.
constexpr std::size_t kBeforeCarry = std::size_t{1} << 28;
// Neighbouring addends go to different copies, because adding to the digit just written waits for
// the store.
constexpr std::size_t kCopies = 4;

struct Digits {
  std::int64_t digit[kDigits + 1] = {};
};

/// Adds sign * mantissa * 2^(position - 320); the mantissa is below 2^53.
void add_scaled(std::int64_t* digits, std::uint64_t mantissa, std::uint32_t position,
                std::int64_t sign) {
  const std::uint32_t shift = position % 32;
  const std::uint64_t low = (mantissa & 0xffffffffu) << shift;
  const std::uint64_t high = (mantissa >> 32) << shift;
  std::int64_t* digit = digits + position / 32;
  digit[0] += sign * static_cast<std::int64_t>(low & 0xffffffffu);
  digit[1] += sign * static_cast<std::int64_t>((low >> 32) + (high & 0xffffffffu));
  digit[2] += sign * static_cast<std::int64_t>(high >> 32);
}

/// Adds value^2; returns 1 when it is not finite (and adds nothing).
std::int64_t add_square(Digits& digits, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = bits >> 23 & 0xff;
  if (exponent == 0xff) return 1;
  const std::uint32_t fraction = bits & 0x7fffff;
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | 0x800000u;
  // value = mantissa * 2^(e - 150) with e = 1 for subnormals.
  const std::uint32_t e = std::max(exponent, 1u);
  add_scaled(digits.digit, mantissa * mantissa,
             2 * e - 300 - static_cast<std::uint32_t>(kUnitExponent), 1);
  return 0;
}

}  // namespace

template <class T>
void ExactSum::add(std::span<const T> values) {
  while (!values.empty()) {
    const std::span<const T> part = values.first(std::min(values.size(), kBeforeCarry));
    values = values.subspan(part.size());
    Digits copies[kCopies];
    std::int64_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + kCopies <= part.size(); i += kCopies) {
      for (std::size_t c = 0; c < kCopies; ++c) {
        nonfinite += add_square(copies[c], to_float(part[i + c]));
      }
    }
    for (; i < part.size(); ++i) nonfinite += add_square(copies[0], to_float(part[i]));
    for (const Digits& copy : copies) {
      for (std::size_t d = 0; d < kDigits; ++d) words_[d] += copy.digit[d];
    }
    words_[kDigits] += nonfinite;
    carry();
  }
}

void ExactSum::add_squares(std::span<const float> values) {
  add(values);
}
void ExactSum::add_squares(std::span<const BFloat16> values) {
  add(values);
}

void ExactSum::add_exact(std::span<const double> values) {
  for (const double value : values) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
    if (exponent == 0) continue;  // zero: subnormals are no multiples of 2^-298
    std::uint64_t mantissa = (bits & 0xfffffffffffff) | std::uint64_t{1} << 52;
    int position = exponent - 1075 - kUnitExponent;
    if (position < 0) {  // then the lowest bits are zero
      mantissa >>= -position;
      position = 0;
    }
    add_scaled(words_.data(), mantissa, static_cast<std::uint32_t>(position),
               bits >> 63 == 0 ? 1 : -1);
  }
  carry();
}

void ExactSum::merge(const ExactSum& other) {
  for (std::size_t d = 0; d < kWords; ++d) words_[d] += other.words_[d];
  carry();
}

ExactSum ExactSum::from_words(const std::array<std::int64_t, kWords>& words) {
  ExactSum sum;
  sum.words_ = words;
  sum.carry();
  return sum;
}

void ExactSum::carry() {
  std::int64_t carried = 0;
  for (std::size_t d = 0; d < kDigits; ++d) {
    const std::int64_t digit = words_[d] + carried;
    words_[d] = digit & 0xffffffff;
    carried = digit >> 32;
  }
}

double ExactSum::value() const {
  if (nonfinite() != 0) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (std::size_t d = 0; d < kDigits; ++d) {
    sum += std::ldexp(static_cast<double>(words_[d]), kUnitExponent + 32 * static_cast<int>(d));
  }
  return sum;
}

}  // namespace shardwright::kernels
