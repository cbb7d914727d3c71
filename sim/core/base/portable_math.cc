// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/portable_math.h"

#include <cmath>
#include <limits>

namespace shardwright {
namespace {

// ln 2 in two parts (Cody and Waite 1980): the first has zeros enough at its end for its product
// with any exponent to be exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;

/// (exp(x) - 1) / x - 1, for |x| < 0.35: Taylor's series, whose next term is below 2^-61.
double beyond_linear(double x) {
  constexpr int kTerms = 14;
  double tail = x / kTerms;
  for (int n = kTerms - 1; n >= 2; --n) tail = x / n * (1 + tail);
  return tail;
}

}  // namespace

double portable_exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 710) return std::numeric_limits<double>::infinity();
  if (x < -746) return 0;
  const double doublings = std::floor(x / kLn2 + 0.5);
  const double high = x - doublings * kLn2High;
  const double rest = high - doublings * kLn2Low;
  // What subtracting the second part of ln 2 rounded away.
  const double lost = (high - rest) - doublings * kLn2Low;
  return std::ldexp(1 + (rest + (rest * beyond_linear(rest) + lost)), static_cast<int>(doublings));
}

double portable_expm1(double x) {
  return std::abs(x) < 0.35 ? x + x * beyond_linear(x) : portable_exp(x) - 1;
}

double portable_log(double x) {
  if (std::isnan(x) || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (std::isinf(x)) return x;
  int doublings = 0;
  double part = std::frexp(x, &doublings);  // in [1/2, 1)
  if (part < 0x1.6a09e667f3bcdp-1) {        // the root of 1/2
    part *= 2;
    --doublings;
  }
  // log(1 + f) = 2 artanh(s) with s = f / (2 + f), at most 0.172: the terms left out are below
  // 2^-58.
  const double f = part - 1;
  const double s = f / (2 + f);
  const double square = s * s;
  constexpr int kLast = 23;
  double tail = 0;
  for (int n = kLast; n >= 3; n -= 2) tail = square * (1.0 / n + tail);
  // 2 s = f - s f, of which f is exact.
  const double log_part = f - s * (f - 2 * tail);
  return doublings * kLn2High + (log_part + doublings * kLn2Low);
}

double portable_pow(double x, double y) {
  return portable_exp(y * portable_log(x));
}

}  // namespace shardwright
