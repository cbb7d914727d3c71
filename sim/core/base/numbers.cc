// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace shardwright {

std::string nearest_divisors(std::int64_t value, std::int64_t whole) {
  std::int64_t below = 1, above = whole;
  for (std::int64_t d = 1; d * d <= whole; ++d) {
    if (whole % d != 0) continue;
    for (const std::int64_t divisor : {d, whole / d}) {
      if (divisor <= value) below = std::max(below, divisor);
      if (divisor >= value) above = std::min(above, divisor);
    }
  }
  return below == above ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double place = share * static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), at, values.end());
  const double fraction = place - std::floor(place);
  if (fraction == 0) return *at;
  return *at + fraction * (*std::min_element(at + 1, values.end()) - *at);
}

double upper_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

SpanUnion::SpanUnion(std::vector<std::pair<Nanoseconds, Nanoseconds>> spans) {
  std::sort(spans.begin(), spans.end());
  for (const auto& [begin, end] : spans) {
    if (end <= begin) continue;
    if (!merged_.empty() && begin <= merged_.back().second) {
      merged_.back().second = std::max(merged_.back().second, end);
    } else {
      merged_.emplace_back(begin, end);
    }
  }
  Nanoseconds sum = 0;
  for (const auto& [begin, end] : merged_) covered_.push_back(sum += end - begin);
}

Nanoseconds SpanUnion::before(Nanoseconds at) const {
  const auto after = std::partition_point(merged_.begin(), merged_.end(),
                                          [&](const auto& piece) { return piece.second <= at; });
  const auto index = static_cast<std::size_t>(after - merged_.begin());
  const Nanoseconds whole = index == 0 ? 0 : covered_[index - 1];
  return after == merged_.end() ? whole : whole + std::max<Nanoseconds>(0, at - after->first);
}

Nanoseconds SpanUnion::overlap(Nanoseconds begin, Nanoseconds end) const {
  return end <= begin ? 0 : before(end) - before(begin);
}

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
