// SPDX-License-Identifier: Apache-2.0
#include "sim/core/workspace.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/layernorm.h"
#include "tests/oracle/rmsnorm.h"

namespace shardwright::kernels::contract {
namespace {

using exec::Heads;
using exec::Norm;

struct NormKernels : Kernels {
  struct Shape {
    std::int64_t rows, cols;
  };
  void check(Normalization kind, const std::vector<Shape>& shapes, double offset = 0) {
    for (const Shape& shape : shapes) check(kind, shape, offset);
  }
  void check(Normalization kind, const Shape& shape, double offset) {
    const auto [rows, cols] = shape;
    const bool layer = kind == Normalization::kLayerNorm;
    const std::string what = std::to_string(rows) + " rows of " + std::to_string(cols) + ": ";
    // A mean that is large beside the deviation: squares must not be summed of x itself.
    const auto x = random(type(), 1, rows * cols, 2.0, layer ? 20.0 : 0.0);
    const auto w = random(type(), 2, cols, 0.2, 1.0 - offset), b = random(type(), 5, cols);
    const auto d_y = random(type(), 3, rows * cols), residual = random(type(), 4, rows * cols);
    const auto before = random(DType::kFp32, 6, cols);
    Numbers sum;
    const auto result = everywhere([&, rows = rows, cols = cols](const Place& on) -> Results {
      const auto in = on.put(type(), x), weight = on.put(type(), w), bias = on.put(type(), b);
      const auto d_out = on.put(type(), d_y), in_place = on.put(type(), d_y);
      const auto left = on.put(type(), residual), without = on.nans(type(), rows * cols);
      const auto y = on.nans(type(), rows * cols), d_x = on.nans(type(), rows * cols);
      const auto saved = on.floats((layer ? 2 : 1) * rows), d_w = on.floats(cols);
      const auto d_w_typed = on.nans(type(), cols);
      const auto scratch = on.floats(norm_partial_sums(rows, cols) * cols);
      Norm norm{.kind = kind, .weight = weight.data(), .offset = offset, .eps = 1e-5};
      if (layer) {
        on->norm_forward(on.stream, in.matrix(cols), norm, without.matrix(cols), saved.floats());
        norm.bias = bias.data();
      }
      on->norm_forward(on.stream, in.matrix(cols), norm, y.matrix(cols), saved.floats());
      const auto backward = [&](const Tensor& d_rows, const void* d_residual, const Tensor& d_in,
                                const Tensor& d_weight, bool adds) {
        on->norm_backward(on.stream, in.matrix(cols), norm, saved.floats(), d_rows.matrix(cols),
                          d_residual, d_in.matrix(cols), d_weight.array(), adds, scratch.floats());
      };
      backward(d_out, nullptr, d_x, d_w, false);
      if (&on == &first()) {
        const auto added = on.put(DType::kFp32, before);
        backward(d_out, nullptr, d_x, added, true);
        sum = added.get();
      }
      // In place of d_y, with a residual, and the weight's gradient in the type of x.
      backward(in_place, left.data(), in_place, d_w_typed, false);
      return {y.get(),        saved.get(),     d_x.get(),    d_w.get(),
              in_place.get(), d_w_typed.get(), without.get()};
    });
    Numbers y, plain, statistics, d_x, d_w;
    if (layer) {
      const auto forward = reference::layernorm_forward(x, w, b, 1e-5);
      const auto gradient = reference::layernorm_backward(x, w, forward, d_y);
      y = forward.y;
      plain = reference::layernorm_forward(x, w, {}, 1e-5).y;
      statistics = forward.rstd;
      statistics.insert(statistics.end(), forward.mean.begin(), forward.mean.end());
      d_x = gradient.d_x;
      d_w = gradient.d_weight;
    } else {
      const Numbers whole = w + Numbers(w.size(), offset);
      const auto forward = reference::rmsnorm_forward(x, whole, 1e-5);
      const auto gradient = reference::rmsnorm_backward(x, whole, forward.rstd, d_y);
      y = forward.y;
      statistics = forward.rstd;
      d_x = gradient.d_x;
      d_w = gradient.d_weight;
    }
    // A mean is rounded beside numbers ten times as large as what is left of them.
    const double sums = layer ? 1e-5 : 2e-6, once = roundoff(type()) + (layer ? 1e-5 : 1e-6);
    const auto part = [&, rows = rows](const Numbers& all, std::int64_t place) {
      return Numbers(all.begin() + place * rows, all.begin() + (place + 1) * rows);
    };
    expect_close(result[0], y, once, what + "y");
    expect_close(part(result[1], 0), part(statistics, 0), layer ? 2e-6 : 1e-6, what + "rstd");
    if (layer) expect_close(part(result[1], 1), part(statistics, 1), 1e-6, what + "mean");
    expect_close(result[2], d_x, once, what + "d_x");
    expect_close(result[3], d_w, sums, what + "d_weight");
    expect_close(result[4], d_x + residual, once, what + "with a residual");
    expect_close(result[5], d_w, once + 1e-6, what + "d_weight typed");
    if (layer) expect_close(result[6], plain, once, what + "without bias");
    // What is added is finished.
    for (std::size_t i = 0; i < before.size(); ++i) {
      ASSERT_EQ(sum[i], rounded(DType::kFp32, before[i] + result[3][i])) << what << i;
    }
  }
  // One to many lanes a row, whole and broken chunks.
  std::vector<Shape> short_rows() const {
    return shapes<Shape>(
        {{1, 64}, {37, 128}, {7, 5}, {7, 13}, {9, 50}, {9, 24}, {33, 100}, {9, 512}}, {{200, 48}});
  }
  std::vector<Shape> long_rows() const { return {{3, 1504}, {5, 4104}, {3, 1027}, {2, 8200}}; }
};
INSTANTIATE_TEST_SUITE_P(On, NormKernels, ::testing::ValuesIn(cases()), parameter_name);

TEST_P(NormKernels, RmsNormOfShortRowsMatchesTheOracle) {
  check(Normalization::kRmsNorm, short_rows());
}
TEST_P(NormKernels, RmsNormOfLongRowsMatchesTheOracle) {
  check(Normalization::kRmsNorm, long_rows());
}
TEST_P(NormKernels, RmsNormOfManyLongRowsMatchesTheOracle) {
  check(Normalization::kRmsNorm, {{260, 520}, {33, 2056}});
}
TEST_P(NormKernels, LayerNormOfShortRowsMatchesTheOracle) {
  check(Normalization::kLayerNorm, short_rows());
}
TEST_P(NormKernels, LayerNormOfLongRowsMatchesTheOracle) {
  check(Normalization::kLayerNorm, long_rows());
}
TEST_P(NormKernels, LayerNormOfManyLongRowsMatchesTheOracle) {
  check(Normalization::kLayerNorm, {{260, 520}, {33, 2056}});
}

// Gemma's weights are kept as their difference from 1.
TEST_P(NormKernels, RmsNormAddsToTheWeight) {
  check(Normalization::kRmsNorm, {{7, 100}, {7, 104}}, 1.0);
}

struct NormOfManyRowsKernels : Kernels {};
INSTANTIATE_TEST_SUITE_P(On, NormOfManyRowsKernels, ::testing::ValuesIn(fp32_cases()),
                         parameter_name);

// More rows than there are blocks: the first blocks use their shared memory again.
TEST_P(NormOfManyRowsKernels, RmsNormBlocksTakeTurns) {
  const std::int64_t rows = 4096 + 16, cols = 65;
  const auto x = random(type(), 1, rows * cols), w = random(type(), 2, cols);
  const auto expected = reference::rmsnorm_forward(x, w, 1e-5);
  const auto result = everywhere([&](const Place& on) -> Results {
    const auto in = on.put(type(), x), weight = on.put(type(), w);
    const auto y = on.nans(type(), rows * cols), rstd = on.floats(rows);
    on->norm_forward(on.stream, in.matrix(cols), {.weight = weight.data(), .eps = 1e-5},
                     y.matrix(cols), rstd.floats());
    return {y.get(), rstd.get()};
  });
  expect_close(result[0], expected.y, once(), "y");
  expect_close(result[1], expected.rstd, 1e-6, "rstd");
}

// The heads of packed tokens: the bits of a dense copy, and nothing else is touched.
TEST_P(NormKernels, RmsNormWorksOnHeadsInsidePackedTokens) {
  const std::int64_t tokens = 9, heads = 3, size = 16;
  for (const std::int64_t stride : {104, 100}) {
    const auto packed = random(type(), 1, tokens * stride), w = random(type(), 2, size);
    const auto d_y = random(type(), 3, tokens * stride);
    const Numbers dense = columns(packed, stride, 0, heads * size);
    everywhere([&](const Place& on) -> Results {
      const auto weight = on.put(type(), w), in = on.put(type(), packed);
      const auto in_dense = on.put(type(), dense), y = on.put(type(), packed);
      const auto y_dense = on.nans(type(), std::ssize(dense));
      const auto rstd = on.floats(tokens * heads), rstd_dense = on.floats(tokens * heads);
      const Norm norm{.weight = weight.data(), .eps = 1e-6};
      const auto heads_of = [&](const Tensor& all, std::int64_t every) {
        return Heads(all.data(), type(), tokens, heads, size, every);
      };
      on->norm_forward(on.stream, heads_of(y, stride), norm, heads_of(y, stride), rstd.floats());
      on->norm_forward(on.stream, in_dense.matrix(size), norm, y_dense.matrix(size),
                       rstd_dense.floats());
      Numbers expected = packed;
      place(y_dense.get(), expected, stride, 0, heads * size);
      EXPECT_TRUE(same_bits({y.get(), rstd.get()}, {expected, rstd_dense.get()}));

      // Backward inside the packed gradient, from an x that lies packed, and from a dense one.
      const auto scratch = on.floats(norm_partial_sums(tokens * heads, size) * size);
      Results gradients;
      for (const Heads& x : {heads_of(in, stride), heads_of(in_dense, heads * size)}) {
        const auto d_x = on.put(type(), d_y), d_w = on.nans(type(), size);
        on->norm_backward(on.stream, x, norm, rstd.floats(), heads_of(d_x, stride), nullptr,
                          heads_of(d_x, stride), d_w.array(), false, scratch.floats());
        gradients.push_back(d_x.get());
        gradients.push_back(d_w.get());
      }
      EXPECT_TRUE(same_bits({gradients[0], gradients[1]}, {gradients[2], gradients[3]}));
      return gradients;
    });
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
