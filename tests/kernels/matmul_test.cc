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

// A part of a product has the bits that it has in the whole, wherever it stands, on every processor
// that fuses multiply and add.
TEST(Matmul, AnElementsBitsDependOnItsRowAndColumnAlone) {
  const std::int64_t m = 530, n = 271, k = 301;
  const std::int64_t row = 203, rows = 41, col = 57, cols = 39;
  const auto a = random_data<float>(1, m * k), b = random_data<float>(2, n * k);
  std::vector<float> of_fused_sets;
  for (const Isa isa : supported_isas()) {
    for (const Layout layout : {Layout::kNT, Layout::kNN, Layout::kTN}) {
      const bool a_stands = layout == Layout::kTN, b_lies = layout == Layout::kNT;
      const Matrix<const float> left(a.data(), a_stands ? k : m, a_stands ? m : k);
      const Matrix<const float> right(b.data(), b_lies ? n : k, b_lies ? k : n);
      std::vector<float> whole(static_cast<std::size_t>(m * n));
      Parallel three(3, isa);
      matmul<float, float, float>(three, layout, left, right, {whole.data(), m, n});
      std::vector<float> part(static_cast<std::size_t>(rows * cols)), expected;
      Parallel one(1, isa);
      matmul<float, float, float>(one, layout,
                                  {a_stands ? left.data + row : left.row(row), a_stands ? k : rows,
                                   a_stands ? rows : k, left.stride},
                                  {b_lies ? right.row(col) : right.data + col, b_lies ? cols : k,
                                   b_lies ? k : cols, right.stride},
                                  {part.data(), rows, cols});
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto from = whole.begin() + (row + i) * n + col;
        expected.insert(expected.end(), from, from + cols);
      }
      EXPECT_TRUE(testing::same_bits(part, expected)) << name_of(isa);
      if (isa == Isa::kBaseline || layout != Layout::kNT) continue;
      if (of_fused_sets.empty()) of_fused_sets = whole;
      EXPECT_TRUE(testing::same_bits(whole, of_fused_sets)) << name_of(isa);
    }
  }
}

// What is added is the finished sum, as where ranks add theirs.
TEST(Matmul, AddsTheFinishedSum) {
  const std::int64_t m = 70, n = 90, k = 700;
  const auto a = random_data<float>(1, m * k), b = random_data<float>(2, n * k);
  const auto before = random_data<float>(3, m * n).typed;
  Parallel parallel(2);
  std::vector<float> alone(before.size()), added = before;
  matmul<float, float, float>(parallel, Layout::kNT, {a.data(), m, k}, {b.data(), n, k},
                              {alone.data(), m, n});
  matmul<float, float, float>(parallel, Layout::kNT, {a.data(), m, k}, {b.data(), n, k},
                              {added.data(), m, n}, Store::kAdd);
  for (std::size_t i = 0; i < alone.size(); ++i) alone[i] = before[i] + alone[i];
  EXPECT_TRUE(testing::same_bits(added, alone));
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
