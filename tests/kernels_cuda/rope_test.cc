// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rope.h"

#include "kernels/host/rope.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/rope.h"

namespace shardwright::kernels::cuda {
namespace {

using host::Rows;
using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class CudaRope : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaRope, Types);

struct RopeCase {
  std::int64_t heads, head_dim, rotary_dim;
};

TYPED_TEST(CudaRope, MatchesTheOracleAndTheHost) {
  using T = TypeParam;
  const std::int64_t tokens = 23, seq = 12;
  for (const auto& [heads, head_dim, rotary_dim] :
       {RopeCase{3, 16, 16}, RopeCase{1, 64, 64}, RopeCase{5, 10, 6}, RopeCase{2, 48, 32}}) {
    for (const std::int64_t gap : {0, 5, 16}) {
      const std::int64_t stride = heads * head_dim + gap;
      const Rope parameters{};
      const RopeTable table(parameters, seq, rotary_dim);
      const auto x = random_data<T>(1, tokens * stride);
      std::vector<std::int32_t> positions;
      for (std::int64_t t = 0; t < tokens; ++t) {
        positions.push_back(static_cast<std::int32_t>(t * 5 % seq));
      }
      const std::vector<float> cosine(table.cosine(), table.cosine() + seq * table.pairs());
      const std::vector<float> sine(table.sine(), table.sine() + seq * table.pairs());
      const OnDevice<float> on_cosine(cosine), on_sine(sine);
      const RopeView view{seq, table.pairs(), on_cosine.data(), on_sine.data()};
      const OnDevice<std::int32_t> on_positions(positions);
      const Rows rows{tokens, heads, head_dim, stride};
      const auto result = in_every_order([&] {
        const OnDevice<T> forward(x.typed), back(x.typed), plain(x.typed);
        rope<T>(nullptr, rows, view, on_positions.data(), seq, false, forward.data());
        rope<T>(nullptr, rows, view, on_positions.data(), seq, true, back.data());
        rope<T>(nullptr, rows, view, nullptr, seq, false, plain.data());
        return Outputs(forward.get(), back.get(), plain.get());
      });
      // The oracle takes rows without gaps.
      std::vector<double> dense, turned;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < heads * head_dim; ++i) {
          dense.push_back(x.exact[static_cast<std::size_t>(t * stride + i)]);
        }
      }
      turned = reference::rope(dense, heads, head_dim, rotary_dim, parameters, positions, 1.0);
      std::vector<double> expected = x.exact;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < heads * head_dim; ++i) {
          expected[static_cast<std::size_t>(t * stride + i)] =
              turned[static_cast<std::size_t>(t * heads * head_dim + i)];
        }
      }
      expect_close(result.template get<0>(), expected, unit_roundoff<T>() + 2e-6, "forward");

      for (const host::Isa isa : host::supported_isas()) {
        if (host::name_of(isa) == "baseline") continue;  // no fused multiply-add
        host::Parallel parallel(1, isa);
        std::vector<T> forward = x.typed, back = x.typed, plain = x.typed;
        host::rope(parallel, rows, table, positions.data(), seq, host::RopeDirection::kForward,
                   forward.data());
        host::rope(parallel, rows, table, positions.data(), seq, host::RopeDirection::kBackward,
                   back.data());
        host::rope<T>(parallel, rows, table, nullptr, seq, host::RopeDirection::kForward,
                      plain.data());
        EXPECT_TRUE(result == Outputs(forward, back, plain)) << host::name_of(isa);
      }
    }
  }
}

TYPED_TEST(CudaRope, PositionsOutsideTheTableShow) {
  using T = TypeParam;
  const RopeTable table(Rope{}, 4, 8);
  const OnDevice<float> cosine(std::vector<float>(table.cosine(), table.cosine() + 16));
  const OnDevice<float> sine(std::vector<float>(table.sine(), table.sine() + 16));
  const OnDevice<std::int32_t> positions(std::vector<std::int32_t>{3, 4, -1});
  const OnDevice<T> x(random_data<T>(1, 3 * 8).typed);
  rope<T>(nullptr, Rows::matrix(3, 8), {4, 4, cosine.data(), sine.data()}, positions.data(), 3,
          false, x.data());
  const auto turned = x.get();
  for (std::size_t i = 0; i < turned.size(); ++i) {
    EXPECT_EQ(std::isnan(to_float(turned[i])), i >= 8) << i;
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
