// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels_cuda/mma_probe.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::OnDevice;
using testing::random_data;

using Mma = testing::CudaTest;

template <class T>
std::vector<T> transposed(const std::vector<T>& m, std::size_t rows, std::size_t cols) {
  std::vector<T> result(m.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) result[c * rows + r] = m[r * cols + c];
  }
  return result;
}

TEST_F(Mma, MultipliesByTheDocumentedFragments) {
  const auto a = random_data<BFloat16>(1, 256), b = random_data<BFloat16>(2, 128);
  const auto c = random_data<float>(3, 128);
  std::vector<double> expected =
      reference::linear_forward(a.exact, transposed(b.exact, 16, 8), 16, 16, 8);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += c.exact[i];
  const OnDevice<BFloat16> on_a(a.typed), on_b(b.typed), on_bt(transposed(b.typed, 16, 8));
  for (const bool turned : {false, true}) {
    OnDevice<float> sum(c.typed);
    mma_probe(nullptr, on_a.data(), turned ? on_bt.data() : on_b.data(), turned, sum.data());
    expect_close(sum.get(), expected, 1e-6, turned ? "from B^T" : "from B");
  }
}

TEST_F(Mma, LdmatrixGivesTwoNeighboursOfARowToALane) {
  std::vector<BFloat16> matrices;
  for (std::uint16_t i = 0; i < 256; ++i) matrices.push_back({i});
  const OnDevice<BFloat16> in(matrices);
  for (const bool turned : {false, true}) {
    OnDevice<std::uint32_t> out(128);
    ldmatrix_probe(nullptr, in.data(), turned, out.data());
    const std::vector<std::uint32_t> registers = out.get();
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t m = 0; m < 4; ++m) {
        const std::uint32_t g = lane / 4, t = lane % 4;
        const std::uint32_t low = 64 * m + (turned ? 2 * t * 8 + g : g * 8 + 2 * t);
        EXPECT_EQ(registers[4 * lane + m], low | (low + (turned ? 8 : 1)) << 16)
            << "lane " << lane << ", matrix " << m;
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
