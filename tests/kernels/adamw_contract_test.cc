// SPDX-License-Identifier: Apache-2.0
#include "kernels/arguments.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/adamw.h"

namespace shardwright::kernels::contract {
namespace {

using exec::StepTotals;
using exec::UpdateSegment;

constexpr double kScale = 0.37;

/// The arrays of a step: gradient, parameter, moments.
struct State {
  DType gradient_type, moment_type;
  Numbers gradient, parameter, m, v;
};

struct AdamWKernels : Kernels {
  AdamW options{.lr = 1e-2, .weight_decay = 0.1, .step = 7, .seed = 42};

  State state(std::int64_t size, DType gradient_type, DType moment_type) const {
    State s{gradient_type,
            moment_type,
            random(gradient_type, 1, size, 1e-3),
            random(type(), 2, size),
            random(moment_type, 3, size, 1e-3),
            random(moment_type, 4, size, 1e-7)};
    for (double& value : s.v) value = std::abs(value);
    return s;
  }
  /// Parameter and moments after a step on these segments of arrays displaced by `offset`.
  Results updated(const Place& on, const State& s, const std::vector<UpdateSegment>& segments,
                  double scale = kScale, std::int64_t offset = 0) const {
    const auto gradient = on.put(s.gradient_type, s.gradient, offset);
    const auto parameter = on.put(type(), s.parameter, offset);
    // Different displacements of differently typed arrays leave no common chunks.
    const auto m = on.put(s.moment_type, s.m, offset == 1 ? 0 : offset);
    const auto v = on.put(s.moment_type, s.v, offset);
    const auto totals = on.raw(std::vector<StepTotals>{{.scale = scale}});
    on->adamw(on.stream, options, totals.data(), segments, gradient.array(), parameter.array(),
              m.array(), v.array());
    return {parameter.get(), m.get(), v.get()};
  }
  template <class Check>
  static void for_all_types(Check check) {
    for (const DType gradient : {DType::kFp32, DType::kBf16}) {
      for (const DType moment : {DType::kFp32, DType::kBf16}) check(gradient, moment);
    }
  }
  /// On the host, too, where that is another one.
  void check_bits(const std::vector<UpdateSegment>& segments) {
    for_all_types([&](DType gradient, DType moment) {
      const State s = state(7000, gradient, moment);
      for (const std::int64_t offset : {0, 3, 1}) {
        everywhere_alike([&](const Place& on) { return updated(on, s, segments, kScale, offset); });
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(On, AdamWKernels, ::testing::ValuesIn(cases()), parameter_name);

// Parameters in bf16 are rounded at random.
struct AdamWOfWideParametersKernels : AdamWKernels {};
INSTANTIATE_TEST_SUITE_P(On, AdamWOfWideParametersKernels, ::testing::ValuesIn(fp32_cases()),
                         parameter_name);

TEST_P(AdamWOfWideParametersKernels, FollowTheOracleForManySteps) {
  const std::int64_t size = 1003;
  const auto gradient_of = [&](std::int64_t step) {
    return random(DType::kFp32, static_cast<std::uint64_t>(100 + step), size);
  };
  State start{DType::kFp32, DType::kFp32, {}, random(DType::kFp32, 1, size), {}, {}};
  start.m = start.v = Numbers(start.parameter.size());
  State expected = start;
  const auto each_step = [&](const auto& step) {
    for (options.step = 1; options.step <= 20; ++options.step) step();
  };
  options.grad_scale = kScale;
  each_step([&] {
    reference::adamw(options, gradient_of(options.step), expected.parameter, expected.m,
                     expected.v);
  });
  options.grad_scale = 1;  // not used
  const auto result = everywhere([&](const Place& on) {
    State s = start;
    each_step([&] {
      s.gradient = gradient_of(options.step);
      const Results after = updated(on, s, {{.count = size, .decays = true}});
      s.parameter = after[0];
      s.m = after[1];
      s.v = after[2];
    });
    return Results{s.parameter, s.m, s.v};
  });
  expect_close(result[0], expected.parameter, 1e-6, "parameter");
  expect_close(result[1], expected.m, 1e-6, "m");
  expect_close(result[2], expected.v, 1e-6, "v");
}

// Gaps stay as they are; one segment is shorter than a chunk, one needs several blocks.
TEST_P(AdamWKernels, GiveTheBitsOfAllOthers) {
  check_bits({{0, 1, 5, true},
              {2, 4500, 1000003, false},
              {4507, 5, 64, true},
              {4520, 0, 0, true},
              {4521, 2460, (std::uint64_t{1} << 36) + 9, true}});
}

// Columns of matrices, that begin and end inside rows: rows shorter than a chunk, shorter than what
// a warp takes, and longer.
TEST_P(AdamWKernels, GiveTheBitsOfAllOthersOnColumns) {
  check_bits({{0, 700, 5, true, 2, 3, 7},
              {702, 1500, 1000003, false, 39, 40, 1000},
              {2210, 5, 64, true},
              {2220, 4700, (std::uint64_t{1} << 36) + 9, true, 900, 1801, 5000}});
}

TEST_P(AdamWKernels, AnyShardingGivesTheSameBits) {
  const std::int64_t size = executor().is_slow ? 7001 : 40001;
  for_all_types([&](DType gradient, DType moment) {
    const State s = state(size, gradient, moment);
    const std::int64_t cuts[] = {0, 1, 17, size / 3, 3 * size / 4, size};
    std::vector<UpdateSegment> parts;
    for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
      parts.push_back(
          {cuts[i], cuts[i + 1] - cuts[i], static_cast<std::uint64_t>(1000 + cuts[i]), true});
    }
    const auto whole = everywhere([&](const Place& on) {
      return updated(on, s, {{.count = size, .first_index = 1000, .decays = true}});
    });
    EXPECT_TRUE(same_bits(updated(first(), s, parts), whole));
  });
}

// A matrix cut by columns over two ranks, each of which cuts its half over others, inside rows.
TEST_P(AdamWKernels, ColumnsOfAMatrixGetTheBitsOfTheWhole) {
  for (const std::int64_t cols : shapes<std::int64_t>({60, 130}, {998})) {
    const std::int64_t size = 61 * cols, width = cols / 2;
    for_all_types([&](DType gradient, DType moment) {
      const State s = state(size, gradient, moment);
      const Results whole =
          updated(first(), s, {{.count = size, .first_index = 1000, .decays = true}});
      for (const std::int64_t begin : {std::int64_t{0}, width}) {
        const auto part = [&](const Numbers& all) { return columns(all, cols, begin, width); };
        const State mine{gradient,          moment,    part(s.gradient),
                         part(s.parameter), part(s.m), part(s.v)};
        const std::int64_t cuts[] = {0, 1, width - 1, 3 * width + 17, 40 * width, 61 * width};
        std::vector<UpdateSegment> segments;
        for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
          const std::int64_t from = cuts[i];
          segments.push_back(
              {.offset = from,
               .count = cuts[i + 1] - from,
               .first_index = static_cast<std::uint64_t>(1000 + begin + from / width * cols),
               .decays = true,
               .row_begin = from % width,
               .row_length = width,
               .row_stride = cols});
        }
        EXPECT_TRUE(same_bits(updated(first(), mine, segments),
                              {part(whole[0]), part(whole[1]), part(whole[2])}))
            << cols;
      }
    });
  }
}

TEST_P(AdamWKernels, StochasticRoundingUsesTheDocumentedBits) {
  State s = state(100, DType::kFp32, DType::kFp32);
  options.step = 1;
  s.m = s.v = Numbers(100, 0.0);
  const std::vector<UpdateSegment> segments{{.count = 100, .first_index = 500}};
  const Results exact = updated(first(), s, segments);
  s.moment_type = DType::kBf16;
  const Results rounded = updated(first(), s, segments);
  const RandomStream stream{options.seed, RandomSite::kRoundMoments, 1};
  for (std::size_t i = 0; i < 100; ++i) {
    const std::uint32_t word = stream.word(500 + i);
    const auto by = [](double value, std::uint32_t bits) {
      return to_float(
          to_bf16_stochastic(static_cast<float>(value), static_cast<std::uint16_t>(bits)));
    };
    EXPECT_EQ(rounded[1][i], by(exact[1][i], word));
    EXPECT_EQ(rounded[2][i], by(exact[2][i], word >> 16));
  }
}

// More segments than one launch takes.
TEST_P(AdamWKernels, TakeAnyNumberOfSegments) {
  const std::int64_t count = 150;
  std::vector<UpdateSegment> segments;
  for (std::int64_t i = 0; i < count; ++i) {
    segments.push_back({i * 10, 9, static_cast<std::uint64_t>(i * 9), i % 2 == 0});
  }
  State s = state(count * 10, DType::kFp32, DType::kFp32);
  options.lr = 1;  // no update is lost to rounding
  s.gradient = random(DType::kFp32, 2, count * 10);
  const Numbers after = updated(first(), s, segments)[0];
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i] != s.parameter[i], i % 10 != 9) << i;
  }
}

TEST_P(AdamWKernels, NothingChangesWhenTheScaleIsNotFinite) {
  const State s = state(100, DType::kFp32, DType::kFp32);
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const auto after = updated(first(), s, {{.count = 100, .decays = true}}, bad);
    EXPECT_TRUE(same_bits(after, {s.parameter, s.m, s.v}));
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
