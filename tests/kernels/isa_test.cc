// SPDX-License-Identifier: Apache-2.0
// The instruction sets against each other: with fused multiply-add, operations without a matrix
// product give the same bits at 8 and at 16 lanes.
#include "kernels/host/activation.h"
#include "kernels/host/norm.h"
#include "kernels/host/optimizer.h"
#include "kernels/host/parallel.h"
#include "kernels/host/simd/kernels.h"
#include "tests/kernels/support.h"

namespace shardwright::kernels::host {
namespace {

using testing::Outputs;
using testing::random_data;

TEST(Isa, Avx2AndAvx512AgreeBitForBit) {
  if (!supported(Isa::kAvx512)) GTEST_SKIP() << "this processor has no AVX-512";
  const std::int64_t rows = 13, cols = 149;
  const auto x = random_data<float>(1, rows * cols, 3.0), w = random_data<float>(2, cols);
  const auto d_y = random_data<float>(3, rows * cols);
  const auto run = [&](Isa isa) {
    Parallel parallel(1, isa);
    std::vector<float> y(x.typed.size()), rstd(static_cast<std::size_t>(rows)), d_x(y.size());
    std::vector<float> d_w(static_cast<std::size_t>(cols)), activated(y.size()), p = x.typed;
    std::vector<float> workspace(static_cast<std::size_t>(kPartialSums * cols));
    const Rows shape = Rows::matrix(rows, cols);
    norm_forward<float>(parallel, {shape, x.data(), w.data(), 1e-5f, y.data(), rstd.data()});
    norm_backward<float, float>(
        parallel, {shape, shape, x.data(), w.data(), rstd.data(), d_y.data(), nullptr, d_x.data()},
        d_w.data(), workspace.data());
    activation_forward<float>(parallel, Activation::kSilu, {x.data(), rows, cols},
                              {activated.data(), rows, cols});
    std::vector<float> m(y.size(), 0.1f), v(y.size(), 0.2f);
    adamw<float, float, float>(parallel, AdamW{}, {}, d_y.typed, p, m, v);
    return Outputs(y, rstd, d_x, d_w, activated, p, m, v);
  };
  EXPECT_TRUE(run(Isa::kAvx2) == run(Isa::kAvx512));
}

TEST(Isa, EveryOneDrawsTheSameRandomWords) {
  const RandomStream stream{
      .seed = 0xfedcba9876543210, .site = RandomSite::kRoundMoments, .step = 3};
  const std::uint64_t first = (std::uint64_t{1} << 36) - 200;
  std::vector<std::uint32_t> expected(1000), drawn(1000);
  random_words(stream, first, expected);
  for (const Isa isa : supported_isas()) {
    kernels_of(isa).random_words(stream, first, 1000, drawn.data());
    EXPECT_EQ(drawn, expected) << name_of(isa);
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
