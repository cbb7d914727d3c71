// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardwright::kernels::reference {
namespace {

double largest_value(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? 448 : 57344;
}

/// What numbers are multiplied by whose largest magnitude is this.
double scale_of(Fp8Format format, Fp8Scaling scaling, double largest) {
  const double most = largest_value(format);
  switch (scaling) {
    case Fp8Scaling::kTensor:
      return largest == 0 ? 1 : static_cast<double>(static_cast<float>(most / largest));
    case Fp8Scaling::kRows:
      return largest == 0 ? 1 : std::exp2(std::floor(std::log2(most / largest)));
    case Fp8Scaling::kBlocks:
      break;
  }
  return std::exp2(largest == 0 ? 126 : -std::ceil(std::log2(largest / most)));
}

}  // namespace

double fp8_value(Fp8Format format, std::uint8_t code) {
  const int mantissa_bits = format == Fp8Format::kE4M3 ? 3 : 2;
  const int bias = format == Fp8Format::kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const bool is_nan = format == Fp8Format::kE4M3 ? (code & 0x7f) == 0x7f : exponent == 31;
  if (is_nan) return std::numeric_limits<double>::quiet_NaN();
  const double fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::exp2(1 - bias) * fraction : std::exp2(exponent - bias) * (1 + fraction);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::uint8_t nearest_fp8(Fp8Format format, double value) {
  if (std::isnan(value)) return 0x7f;
  int best = 0;
  double distance = std::numeric_limits<double>::infinity();
  const double magnitude = std::min(std::abs(value), largest_value(format));
  for (int code = 0; code < 0x80; ++code) {
    const double found = std::abs(fp8_value(format, static_cast<std::uint8_t>(code)) - magnitude);
    if (found < distance || (found == distance && code % 2 == 0)) {
      best = code;
      distance = found;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

Quantized quantize(Fp8Format format, Fp8Scaling scaling, const std::vector<double>& numbers,
                   std::int64_t cols) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  const std::int64_t group = scaling == Fp8Scaling::kTensor ? count
                             : scaling == Fp8Scaling::kRows ? cols
                                                            : kFp8Block;
  Quantized result;
  for (std::int64_t begin = 0; begin < count; begin += group) {
    double largest = 0;
    for (std::int64_t i = begin; i < begin + group; ++i)
      largest = std::max(largest, std::abs(numbers[static_cast<std::size_t>(i)]));
    const double scale = scale_of(format, scaling, largest);
    const double divisor = static_cast<double>(static_cast<float>(1 / scale));
    for (std::int64_t i = begin; i < begin + group; ++i) {
      const auto scaled = static_cast<float>(numbers[static_cast<std::size_t>(i)] * scale);
      result.codes.push_back(nearest_fp8(format, static_cast<double>(scaled)));
      result.divisors.push_back(divisor);
      result.values.push_back(fp8_value(format, result.codes.back()) * divisor);
    }
  }
  return result;
}

}  // namespace shardwright::kernels::reference
