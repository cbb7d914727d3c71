// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "kernels/host/rope.h"
#include "tests/oracle/rope.h"

namespace shardwright::kernels {
namespace {

std::vector<Rope> scalings() {
  return {Rope{.theta = 10000.0},
          Rope{.theta = 10000.0, .scaling = RopeScaling::kLinear, .factor = 4.0},
          Rope{.theta = 500000.0,
               .scaling = RopeScaling::kLlama3,
               .factor = 8.0,
               .low_freq_factor = 1.0,
               .high_freq_factor = 4.0,
               .original_max_positions = 8192}};
}

TEST(RopeTable, FrequenciesMatchTheOracle) {
  for (const Rope& parameters : scalings()) {
    for (const std::int64_t d : {2, 16, 64, 128}) {
      const std::vector<float> frequencies = rope_frequencies(parameters, d);
      ASSERT_EQ(std::ssize(frequencies), d / 2);
      for (std::int64_t j = 0; j < d / 2; ++j) {
        const double expected = reference::rope_frequency(parameters, d, j);
        EXPECT_NEAR(frequencies[static_cast<std::size_t>(j)], expected, 3e-7 * expected);
      }
    }
  }
}

TEST(RopeTable, Llama3KeepsHighAndStretchesLowFrequencies) {
  const Rope parameters = scalings()[2];
  const std::vector<float> scaled = rope_frequencies(parameters, 128);
  const std::vector<float> plain = rope_frequencies(Rope{.theta = 500000.0}, 128);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_FLOAT_EQ(scaled.back(), plain.back() / 8.0f);
  int between = 0;
  for (std::size_t j = 0; j < plain.size(); ++j) {
    between += scaled[j] < plain[j] * 0.999f && scaled[j] > plain[j] / 7.99f;
  }
  EXPECT_GT(between, 0);
}

}  // namespace
}  // namespace shardwright::kernels
