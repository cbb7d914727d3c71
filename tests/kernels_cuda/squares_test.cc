// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/squares.h"

#include "kernels/exact_sum.h"
#include "tests/kernels_cuda/support.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::OnDevice;
using testing::random_data;
using Words = std::array<std::int64_t, ExactSum::kWords>;

using CudaSquares = testing::CudaTest;

template <class T>
ExactSum sum_on_device(const std::vector<T>& x, std::int64_t offset = 0, int repeats = 1) {
  const OnDevice<T> in(x, offset);
  const OnDevice<std::int64_t> words{std::vector<std::int64_t>(ExactSum::kWords)};
  for (int i = 0; i < repeats; ++i) {
    sum_of_squares<T>(nullptr, in.data(), std::ssize(x), words.data());
  }
  const auto sum = words.get();
  Words copy;
  std::copy(sum.begin(), sum.end(), copy.begin());
  return ExactSum::from_words(copy);
}

template <class T>
ExactSum expected_sum(const std::vector<T>& x) {
  ExactSum sum;
  sum.add_squares(std::span<const T>(x));
  return sum;
}

TEST_F(CudaSquares, AreTheWordsOfTheHost) {
  for (const std::int64_t size : {1, 5, 8, 31, 257, 2048, 50021}) {
    for (const std::int64_t offset : {0, 1, 3}) {
      const auto wide = random_data<float>(1, size, 1e-3).typed;
      const auto narrow = random_data<BFloat16>(2, size, 1e-3).typed;
      EXPECT_EQ(sum_on_device(wide, offset).words(), expected_sum(wide).words()) << size;
      EXPECT_EQ(sum_on_device(narrow, offset).words(), expected_sum(narrow).words()) << size;
    }
  }
}

TEST_F(CudaSquares, AreExactForAnyMixOfMagnitudes) {
  const RandomStream stream{.seed = 9};
  for (const int spread : {0, 10, 31, 33, 60, 250}) {
    std::vector<float> x;
    for (std::uint64_t i = 0; i < 5000; ++i) {
      const int exponent =
          static_cast<int>(stream.below(i, static_cast<std::uint64_t>(spread) + 1));
      x.push_back(std::ldexp(stream.uniform(i) - 0.5f, 60 - exponent));
    }
    EXPECT_EQ(sum_on_device(x).words(), expected_sum(x).words()) << spread;
  }
}

TEST_F(CudaSquares, ExtremesAndNonFinite) {
  std::vector<float> x(3000, 0x1p-149f);
  EXPECT_EQ(sum_on_device(x).value(), 3000 * 0x1p-298);
  x.assign(3000, -std::numeric_limits<float>::max());
  EXPECT_EQ(sum_on_device(x).words(), expected_sum(x).words());
  x[0] = 0x1p-149f;
  EXPECT_EQ(sum_on_device(x).words(), expected_sum(x).words());
  x[2999] = INFINITY;
  x[1] = NAN;
  EXPECT_EQ(sum_on_device(x).nonfinite(), 2);
  EXPECT_TRUE(std::isnan(sum_on_device(x).value()));
  x.assign(10, 0.0f);
  EXPECT_EQ(sum_on_device(x).value(), 0.0);
}

// More than all blocks take in one round.
TEST_F(CudaSquares, WalkOverLongArrays) {
  const std::int64_t period = 1 << 16;
  const auto part = random_data<BFloat16>(3, period, 1e-2).typed;
  std::vector<BFloat16> x;
  for (int i = 0; i < 33; ++i) x.insert(x.end(), part.begin(), part.end());
  ExactSum expected;
  for (int i = 0; i < 33; ++i) expected.merge(expected_sum(part));
  EXPECT_EQ(sum_on_device(x).words(), expected.words());
}

TEST_F(CudaSquares, AddToWhatIsThere) {
  const auto x = random_data<float>(1, 1000).typed;
  ExactSum twice = expected_sum(x);
  twice.merge(expected_sum(x));
  EXPECT_EQ(sum_on_device(x, 0, 2).words(), twice.words());
}

}  // namespace
}  // namespace shardwright::kernels::cuda
