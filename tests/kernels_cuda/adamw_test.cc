// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/adamw.h"

#include "kernels/host/adamw.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/adamw.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;

using CudaAdamW = testing::CudaTest;

const AdamW kOptions{.lr = 1e-2, .weight_decay = 0.1, .step = 7, .seed = 42};
constexpr double kGradScale = 0.37;

TEST_F(CudaAdamW, FollowsTheOracle) {
  const std::int64_t size = 1003;
  const auto p = random_data<float>(1, size), g = random_data<float>(2, size);
  const auto m = random_data<float>(3, size, 0.1), v = random_data<float>(4, size, 1e-3, 1e-2);
  std::vector<double> parameter = p.exact, first = m.exact, second;
  std::vector<float> positive;
  for (const float value : v.typed) {
    positive.push_back(std::abs(value));
    second.push_back(positive.back());
  }
  AdamW options = kOptions;
  options.grad_scale = kGradScale;
  reference::adamw(options, g.exact, parameter, first, second);
  const OnDevice<float> on_p(p.typed), on_g(g.typed), on_m(m.typed), on_v(positive);
  const OnDevice<double> scale(std::vector<double>{kGradScale});
  const AdamWSegment segment{0, size, 0, true};
  adamw<float, float, float>(nullptr, kOptions, scale.data(), {&segment, 1}, on_g.data(),
                             on_p.data(), on_m.data(), on_v.data());
  expect_close(on_p.get(), parameter, 1e-6, "parameter");
  expect_close(on_m.get(), first, 1e-6, "m");
  expect_close(on_v.get(), second, 1e-6, "v");
}

/// Segments of one array at any offsets, whatever the displacement of the arrays.
template <class P, class G, class M>
void check_against_host(std::int64_t offset, const std::vector<AdamWSegment>& segments) {
  const std::int64_t size = 7000;
  const auto g = random_data<G>(1, size, 1e-3);
  const auto p = random_data<P>(2, size);
  const auto m = random_data<M>(3, size, 1e-3);
  auto v = random_data<M>(4, size, 1e-7);
  for (M& value : v.typed) value = from_float<M>(std::abs(to_float(value)));
  const OnDevice<G> on_g(g.typed, offset);
  const OnDevice<double> scale(std::vector<double>{kGradScale});
  const auto result = in_every_order([&] {
    // Different displacements of differently typed arrays leave no common chunks.
    const OnDevice<P> on_p(p.typed, offset);
    const OnDevice<M> on_m(m.typed, offset == 1 ? 0 : offset), on_v(v.typed, offset);
    adamw<P, G, M>(nullptr, kOptions, scale.data(), segments, on_g.data(), on_p.data(), on_m.data(),
                   on_v.data());
    return Outputs(on_p.get(), on_m.get(), on_v.get());
  });
  for (const host::Isa isa : host::supported_isas()) {
    if (host::name_of(isa) == "baseline") continue;  // no fused multiply-add
    host::Parallel parallel(1, isa);
    std::vector<P> parameter = p.typed;
    std::vector<M> first = m.typed, second = v.typed;
    for (const AdamWSegment& s : segments) {
      AdamW options = kOptions;
      options.grad_scale = kGradScale;
      if (!s.decays) options.weight_decay = 0;
      const auto at = static_cast<std::size_t>(s.offset), count = static_cast<std::size_t>(s.count);
      host::adamw<P, G, M>(
          parallel, options, s.indices(), std::span<const G>(g.typed).subspan(at, count),
          std::span(parameter).subspan(at, count), std::span(first).subspan(at, count),
          std::span(second).subspan(at, count));
    }
    EXPECT_TRUE(result == Outputs(parameter, first, second))
        << host::name_of(isa) << ", offset " << offset;
  }
}

void check_all_types(const std::vector<AdamWSegment>& segments) {
  for (const std::int64_t offset : {0, 3, 1}) {
    check_against_host<float, float, float>(offset, segments);
    check_against_host<float, float, BFloat16>(offset, segments);
    check_against_host<float, BFloat16, BFloat16>(offset, segments);
    check_against_host<float, BFloat16, float>(offset, segments);
    check_against_host<BFloat16, float, float>(offset, segments);
    check_against_host<BFloat16, float, BFloat16>(offset, segments);
    check_against_host<BFloat16, BFloat16, float>(offset, segments);
    check_against_host<BFloat16, BFloat16, BFloat16>(offset, segments);
  }
}

// Gaps stay as they are; one segment is shorter than a chunk, one needs several blocks.
TEST_F(CudaAdamW, IsBitForBitTheHosts) {
  check_all_types({{0, 1, 5, true},
                   {2, 4500, 1000003, false},
                   {4507, 5, 64, true},
                   {4520, 0, 0, true},
                   {4521, 2460, (std::uint64_t{1} << 36) + 9, true}});
}

// Columns of matrices, that begin and end inside rows: rows shorter than a chunk, shorter than what
// a warp takes, and longer.
TEST_F(CudaAdamW, ColumnsAreBitForBitTheHosts) {
  check_all_types({{0, 700, 5, true, 2, 3, 7},
                   {702, 1500, 1000003, false, 39, 40, 1000},
                   {2210, 5, 64, true},
                   {2220, 4700, (std::uint64_t{1} << 36) + 9, true, 900, 1801, 5000}});
}

// More segments than one launch takes.
TEST_F(CudaAdamW, TakesAnyNumberOfSegments) {
  const std::int64_t count = 150;
  std::vector<AdamWSegment> segments;
  for (std::int64_t i = 0; i < count; ++i) {
    segments.push_back({i * 10, 9, static_cast<std::uint64_t>(i * 9), i % 2 == 0});
  }
  const auto p = random_data<float>(1, count * 10), g = random_data<float>(2, count * 10);
  const OnDevice<float> on_p(p.typed), on_g(g.typed);
  const OnDevice<float> m(std::vector<float>(p.typed.size())),
      v(std::vector<float>(p.typed.size()));
  const OnDevice<double> scale(std::vector<double>{1.0});
  adamw<float, float, float>(nullptr, kOptions, scale.data(), segments, on_g.data(), on_p.data(),
                             m.data(), v.data());
  const auto after = on_p.get();
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i] != p.typed[i], i % 10 != 9) << i;
  }
}

TEST_F(CudaAdamW, NothingChangesWhenTheScaleIsNotFinite) {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const auto p = random_data<float>(1, 100);
    const OnDevice<float> on_p(p.typed), g(p.typed), m(p.typed), v(p.typed);
    const OnDevice<double> scale(std::vector<double>{bad});
    const AdamWSegment segment{0, 100, 0, true};
    adamw<float, float, float>(nullptr, kOptions, scale.data(), {&segment, 1}, g.data(),
                               on_p.data(), m.data(), v.data());
    EXPECT_EQ(on_p.get(), p.typed);
    EXPECT_EQ(m.get(), p.typed);
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
