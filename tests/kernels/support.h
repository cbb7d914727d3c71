// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: seeded inputs, runs on every instruction set and thread count, and
// comparison with an oracle in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/host/parallel.h"
#include "kernels/random.h"

namespace shardwright::kernels::testing {

/// A typed array and the same numbers in double for the oracle.
template <class T>
struct Data {
  std::vector<T> typed;
  std::vector<double> exact;

  const T* data() const { return typed.data(); }
};

/// Normal numbers with this deviation, rounded to T.
template <class T>
Data<T> random_data(std::uint64_t seed, std::int64_t count, double deviation = 1.0,
                    double mean = 0.0) {
  const RandomStream stream{.seed = seed};
  Data<T> result;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = mean + deviation * stream.normal(static_cast<std::uint64_t>(i));
    result.typed.push_back(from_float<T>(static_cast<float>(value)));
    result.exact.push_back(to_float(result.typed.back()));
  }
  return result;
}

inline std::vector<std::int32_t> random_tokens(std::uint64_t seed, std::int64_t count,
                                               std::int64_t vocab) {
  const RandomStream stream{.seed = seed, .site = RandomSite::kSynthetic};
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(
        stream.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
  }
  return tokens;
}

/// `count` elements that hold garbage, so that a result which is not fully written shows.
template <class T>
std::vector<T> poisoned(std::int64_t count) {
  return std::vector<T>(static_cast<std::size_t>(count),
                        from_float<T>(std::numeric_limits<float>::quiet_NaN()));
}

/// Relative error of one rounding to T.
template <class T>
constexpr double unit_roundoff() {
  return std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;
}

inline double widened(double value) {
  return value;
}
inline double widened(BFloat16 value) {
  return to_float(value);
}

/// Every element within `tolerance` times the largest expected magnitude, or times `at_least` where
/// what cancels is larger than what is left.
template <class T>
void expect_close(const std::vector<T>& actual, const std::vector<double>& expected,
                  double tolerance, const std::string& what, double at_least = 0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = at_least;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < actual.size() && !std::isnan(worst); ++i) {
    const double error = std::abs(widened(actual[i]) - expected[i]);
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
  }
  EXPECT_LE(worst, tolerance * largest)
      << what << ": element " << where << " of " << actual.size() << ", expected "
      << (expected.empty() ? 0.0 : expected[where]);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// What one run of an operation wrote, compared bit by bit.
template <class... Arrays>
struct Outputs {
  std::tuple<Arrays...> arrays;

  explicit Outputs(Arrays... written) : arrays(std::move(written)...) {}
  template <std::size_t kIndex>
  const auto& get() const {
    return std::get<kIndex>(arrays);
  }
  bool operator==(const Outputs& other) const {
    return equal(other, std::index_sequence_for<Arrays...>());
  }

 private:
  template <std::size_t... kIndices>
  bool equal(const Outputs& other, std::index_sequence<kIndices...>) const {
    return (same_bits(get<kIndices>(), other.template get<kIndices>()) && ...);
  }
};

/// Runs compute(parallel), which returns Outputs, on every instruction set with 1, 2 and 5 threads,
/// expects the same bits for any number of threads, and calls check(outputs, name of the set) once
/// per instruction set.
template <class Compute, class Check>
void on_every_isa(Compute compute, Check check) {
  for (const host::Isa isa : host::supported_isas()) {
    host::Parallel one(1, isa);
    const auto result = compute(one);
    for (const int threads : {2, 5}) {
      host::Parallel several(threads, isa);
      EXPECT_TRUE(result == compute(several))
          << host::name_of(isa) << " with " << threads << " threads";
    }
    check(result, std::string(host::name_of(isa)));
  }
}

/// Central differences of f at x against `gradient`; f is in double and smooth.
inline void expect_gradient(const std::function<double(const std::vector<double>&)>& f,
                            std::vector<double> x, const std::vector<double>& gradient,
                            const std::string& what, double tolerance = 1e-7) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  constexpr double kStep = 1e-5;
  std::vector<double> numeric;
  for (double& value : x) {
    const double kept = value;
    value = kept + kStep;
    const double above = f(x);
    value = kept - kStep;
    numeric.push_back((above - f(x)) / (2 * kStep));
    value = kept;
  }
  double largest = 1e-3;
  for (const double g : numeric) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(gradient[i], numeric[i], tolerance * largest) << what << " element " << i;
  }
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i) result += a[i] * b[i];
  return result;
}

}  // namespace shardwright::kernels::testing
