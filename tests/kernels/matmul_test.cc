// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/matmul.h"

#include <fmt/core.h>

#include "tests/kernels/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::host {
namespace {

using testing::Data;
using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

/// Sums of k products in fp32, then one rounding to C. Errors of a sum grow at most like k, in
/// practice like its root.
template <class C>
double tolerance(std::int64_t k) {
  return unit_roundoff<C>() + 4 * std::sqrt(static_cast<double>(k)) * 0x1p-24;
}

struct Shape {
  std::int64_t m, n, k;
};
// One row, odd sizes, a vocabulary of 101, more than one tile and more than one bf16 slice.
constexpr Shape kShapes[] = {{1, 1, 1},    {1, 64, 64},    {7, 101, 48},   {33, 5, 300},
                             {64, 96, 64}, {130, 200, 70}, {65, 97, 1030}, {700, 600, 20}};

template <class A, class B, class C>
void check_all_layouts() {
  for (const auto& [m, n, k] : kShapes) {
    const auto a = random_data<A>(1, m * k);
    const auto b = random_data<B>(2, n * k);
    const auto d = random_data<A>(3, m * n);
    const std::string what = fmt::format("[{}, {}, {}]", m, n, k);
    on_every_isa(
        [&](Parallel& parallel) {
          auto nt = poisoned<C>(m * n);
          matmul<A, B, C>(parallel, Layout::kNT, {a.data(), m, k}, {b.data(), n, k},
                          {nt.data(), m, n});
          auto nn = poisoned<C>(m * k);
          matmul<A, B, C>(parallel, Layout::kNN, {d.data(), m, n}, {b.data(), n, k},
                          {nn.data(), m, k});
          auto tn = poisoned<C>(n * k);
          matmul<A, A, C>(parallel, Layout::kTN, {d.data(), m, n}, {a.data(), m, k},
                          {tn.data(), n, k});
          return Outputs(nt, nn, tn);
        },
        [&](const auto& result, const std::string& isa) {
          expect_close(result.template get<0>(),
                       reference::linear_forward(a.exact, b.exact, m, k, n), tolerance<C>(k),
                       isa + " NT " + what);
          expect_close(result.template get<1>(),
                       reference::linear_input_gradient(d.exact, b.exact, m, k, n), tolerance<C>(n),
                       isa + " NN " + what);
          expect_close(result.template get<2>(),
                       reference::linear_weight_gradient(d.exact, a.exact, m, k, n),
                       tolerance<C>(m), isa + " TN " + what);
        });
  }
}

TEST(Matmul, Fp32) {
  check_all_layouts<float, float, float>();
}
TEST(Matmul, Bf16) {
  check_all_layouts<BFloat16, BFloat16, BFloat16>();
}
TEST(Matmul, Bf16IntoFp32) {
  check_all_layouts<BFloat16, BFloat16, float>();
}
TEST(Matmul, Fp32TimesBf16) {
  check_all_layouts<float, BFloat16, BFloat16>();
}

template <class C>
void check_add_and_strides() {
  const std::int64_t m = 70, n = 101, k = 300;
  const std::int64_t a_stride = k + 3, b_stride = k + 5, c_stride = n + 7;
  const auto a = random_data<C>(1, m * a_stride), b = random_data<C>(2, n * b_stride);
  const auto before = random_data<C>(3, m * c_stride, 10.0);
  std::vector<double> expected = before.exact;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t l = 0; l < k; ++l) {
        expected[static_cast<std::size_t>(i * c_stride + j)] +=
            a.exact[static_cast<std::size_t>(i * a_stride + l)] *
            b.exact[static_cast<std::size_t>(j * b_stride + l)];
      }
    }
  }
  on_every_isa(
      [&](Parallel& parallel) {
        std::vector<C> c = before.typed;
        matmul<C, C, C>(parallel, Layout::kNT, {a.data(), m, k, a_stride},
                        {b.data(), n, k, b_stride}, {c.data(), m, n, c_stride}, Store::kAdd);
        return Outputs(c);
      },
      [&](const auto& result, const std::string& isa) {
        expect_close(result.template get<0>(), expected, tolerance<C>(k), isa);
        for (std::int64_t i = 0; i < m; ++i) {  // what lies between the rows stays as it was
          for (std::int64_t j = n; j < c_stride; ++j) {
            const auto at = static_cast<std::size_t>(i * c_stride + j);
            ASSERT_EQ(result.template get<0>()[at], before.typed[at]);
          }
        }
      });
}

TEST(Matmul, AddsToWhatIsThereFp32) {
  check_add_and_strides<float>();
}
TEST(Matmul, AddsToWhatIsThereBf16) {
  check_add_and_strides<BFloat16>();
}

TEST(Matmul, EmptyInnerDimensionGivesZero) {
  Parallel parallel(1);
  auto c = poisoned<float>(6);
  const float nothing = 0;
  matmul<float, float, float>(parallel, Layout::kNT, {&nothing, 2, 0}, {&nothing, 3, 0},
                              {c.data(), 2, 3});
  for (const float value : c) EXPECT_EQ(value, 0.0f);
}

// The same rows give the same bits whatever the other rows hold.
TEST(Matmul, RowsDoNotSeeEachOther) {
  const std::int64_t m = 256, n = 101, k = 65;
  auto x = random_data<float>(1, m * k);
  const auto w = random_data<float>(2, n * k);
  for (const Isa isa : supported_isas()) {
    Parallel parallel(2, isa);
    std::vector<float> y(static_cast<std::size_t>(m * n)), changed(y.size());
    matmul<float, float, float>(parallel, Layout::kNT, {x.data(), m, k}, {w.data(), n, k},
                                {y.data(), m, n});
    auto other = x.typed;
    for (std::int64_t i = m / 2 * k; i < m * k; ++i) other[static_cast<std::size_t>(i)] *= -3.0f;
    matmul<float, float, float>(parallel, Layout::kNT, {other.data(), m, k}, {w.data(), n, k},
                                {changed.data(), m, n});
    y.resize(static_cast<std::size_t>(m / 2 * n));
    changed.resize(y.size());
    EXPECT_TRUE(testing::same_bits(y, changed)) << name_of(isa);
  }
}

TEST(Matmul, ShapesMustAgree) {
  Parallel parallel(1);
  std::vector<float> x(100);
  EXPECT_DEATH((matmul<float, float, float>(parallel, Layout::kNT, {x.data(), 2, 3},
                                            {x.data(), 4, 5}, {x.data(), 2, 4})),
               "matmul of");
}

}  // namespace
}  // namespace shardwright::kernels::host
