// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/rope.h"
#include "sim/core/base/error.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/rope.h"

namespace shardwright::kernels::contract {
namespace {

struct RopeKernels : Kernels {
  /// A table's numbers on a device.
  struct Table {
    std::int64_t positions, pairs;
    OnDevice<float> cosine, sine;
    Table(const Place& on, const RopeTable& table)
        : positions(table.positions()),
          pairs(table.pairs()),
          cosine(on.raw(std::vector<float>(table.cosine(), table.cosine() + positions * pairs))),
          sine(on.raw(std::vector<float>(table.sine(), table.sine() + positions * pairs))) {}
    exec::RopeTables view() const { return {cosine.data(), sine.data(), positions, pairs}; }
  };
};
INSTANTIATE_TEST_SUITE_P(On, RopeKernels, ::testing::ValuesIn(cases()), parameter_name);

TEST_P(RopeKernels, MatchTheOracleAndAllOthers) {
  struct Shape {
    std::int64_t heads, kv_heads, size, rotary, gap;
  };
  const std::int64_t seq = 12, batch = 2, tokens = seq * batch;
  Tokens positions, in_order;
  for (std::int32_t t = 0; t < tokens; ++t) {
    positions.push_back(t * 5 % static_cast<std::int32_t>(seq));
    in_order.push_back(t % static_cast<std::int32_t>(seq));
  }
  const Rope linear{.scaling = RopeScaling::kLinear, .factor = 4.0};
  const Rope llama3{.theta = 500000.0,
                    .scaling = RopeScaling::kLlama3,
                    .factor = 8.0,
                    .low_freq_factor = 1.0,
                    .high_freq_factor = 4.0,
                    .original_max_positions = 8192};
  for (const auto& [heads, kv_heads, size, rotary, gap] : shapes<Shape>({{2, 1, 16, 16, 0},
                                                                         {2, 1, 16, 16, 5},
                                                                         {1, 0, 64, 64, 16},
                                                                         {4, 1, 10, 6, 0},
                                                                         {1, 1, 48, 32, 16},
                                                                         {2, 1, 20, 14, 0}},
                                                                        {})) {
    const std::int64_t turned = (heads + kv_heads) * size;
    const std::int64_t stride = turned + kv_heads * size + gap;
    const auto x = random(type(), 1, tokens * stride);
    for (const Rope& parameters : {Rope{}, linear, llama3}) {
      const RopeTable table(parameters, seq, rotary);
      AttentionShape shape{.batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads};
      shape.head_dim = size;
      const auto result = everywhere_alike([&, stride = stride](const Place& on) -> Results {
        const Table there(on, table);
        const auto places = on.raw(positions);
        const auto forward = on.put(type(), x), plain = on.put(type(), x);
        const auto turn = [&](const Tensor& heads_of, const std::int32_t* at, bool backward) {
          on->rope(on.stream, {heads_of.matrix(stride), shape}, there.view(), at, backward);
          return heads_of.get();
        };
        return {turn(forward, places.data(), false), turn(forward, places.data(), true),
                turn(plain, nullptr, false)};
      });
      const auto expected = [&, rotary = rotary, heads = heads + kv_heads,
                             size = size](const Tokens& at) {
        Numbers all = x;
        place(
            reference::rope(columns(x, stride, 0, turned), heads, size, rotary, parameters, at, 1),
            all, stride, 0, turned);
        return all;
      };
      expect_close(result[0], expected(positions), roundoff(type()) + 2e-6, "forward");
      expect_close(result[1], x, 3 * roundoff(type()), "and back");
      expect_close(result[2], expected(in_order), roundoff(type()) + 2e-6, "positions in order");
      for (std::int64_t i = 0; i < turned; ++i) {
        const auto at = static_cast<std::size_t>(i);
        EXPECT_EQ(result[2][at], x[at]) << "position 0 turns nothing";
      }
    }
  }
}

// The host refuses them; elsewhere they show as NaN.
TEST_P(RopeKernels, PositionsOutsideTheTableShow) {
  const RopeTable table(Rope{}, 4, 8);
  for (const Tokens& positions : {Tokens{3, 4, -1, 0, 0}, Tokens{3, -1, 4, 0, 0}, Tokens{}}) {
    const Place on(executor().make(0));
    const Table there(on, table);
    const auto x = on.put(type(), random(type(), 1, 5 * 8));
    const auto places = on.raw(positions);
    AttentionShape shape{.batch = 1, .seq = 5, .heads = 1, .kv_heads = 0, .head_dim = 8};
    on->rope(on.stream, {x.matrix(8), shape}, there.view(),
             positions.empty() ? nullptr : places.data(), false);
    if (executor().is_host) {
      EXPECT_THROW(on->synchronize(), Error);
      continue;
    }
    const Numbers turned = x.get();
    for (std::size_t i = 0; i < turned.size(); ++i) {
      const std::int32_t at =
          positions.empty() ? static_cast<std::int32_t>(i / 8) : positions[i / 8];
      EXPECT_EQ(std::isnan(turned[i]), at < 0 || at > 3) << i;
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
