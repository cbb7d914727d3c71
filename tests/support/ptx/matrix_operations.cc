// SPDX-License-Identifier: Apache-2.0
// mma.m16n8k16 of bf16 with fp32 sums, and ldmatrix, by the fragments of the PTX ISA ("Matrix
// fragments for mma.m16n8k16 with floating point type"). A tensor core adds up in an order and a
// precision of its own; here sums are fp64 from the old value on, rounded once, as in the emulation
// of kernels.
#include <cstring>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

float element(std::uint64_t pair, unsigned which) {
  const auto bits = static_cast<std::uint32_t>(pair);
  return std::bit_cast<float>(which == 0 ? bits << 16 : bits & 0xffff0000u);
}

// Of lane l, g = l / 4 is a row of A and C and a column of B; t = l % 4 the pair along the other
// side.
void multiply(Warp& warp, const Instruction& i, std::uint32_t) {
  double a[16][16], b[16][8], c[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned half = 0; half < 2; ++half) {
      const auto of_a = [&](unsigned n) { return element(warp.row(i.row[4 + n])[lane], half); };
      const auto of_b = [&](unsigned n) { return element(warp.row(i.row[8 + n])[lane], half); };
      const auto of_c = [&](unsigned n) { return from_bits<float>(warp.row(i.row[10 + n])[lane]); };
      const unsigned k = 2 * t + half;
      a[g][k] = of_a(0);
      a[g + 8][k] = of_a(1);
      a[g][k + 8] = of_a(2);
      a[g + 8][k + 8] = of_a(3);
      b[k][g] = of_b(0);
      b[k + 8][g] = of_b(1);
      c[g][k] = of_c(half);
      c[g + 8][k] = of_c(2 + half);
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned n = 0; n < 4; ++n) {
      const unsigned row = lane / 4 + (n < 2 ? 0 : 8), column = 2 * (lane % 4) + n % 2;
      double sum = c[row][column];
      for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      warp.row(i.row[n])[lane] = to_bits(static_cast<float>(sum));
    }
  }
}

template <unsigned kMatrices, bool kTransposed>
void load_matrices(Warp& warp, const Instruction& i, std::uint32_t) {
  std::uint16_t matrix[kMatrices][8][8];
  for (unsigned lane = 0; lane < 8 * kMatrices; ++lane) {
    const std::uint64_t address =
        warp.row(i.row[kMatrices])[lane] + static_cast<std::uint64_t>(i.offset[0]);
    const std::byte* row =
        warp.reach(Space::kShared, static_cast<std::uint32_t>(address), 16, lane);
    std::memcpy(matrix[lane / 8][lane % 8], row, 16);
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned m = 0; m < kMatrices; ++m) {
      const std::uint32_t low = kTransposed ? matrix[m][2 * t][g] : matrix[m][g][2 * t];
      const std::uint32_t high = kTransposed ? matrix[m][2 * t + 1][g] : matrix[m][g][2 * t + 1];
      warp.row(i.row[m])[lane] = high << 16 | low;
    }
  }
}

}  // namespace

void add_matrix_operations(Operations& table) {
  table["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {multiply, Kind::kWholeWarp};
  const std::string name = "ldmatrix.sync.aligned.m8n8.";
  table[name + "x2.shared.b16"] = {load_matrices<2, false>, Kind::kWholeWarp};
  table[name + "x4.shared.b16"] = {load_matrices<4, false>, Kind::kWholeWarp};
  table[name + "x2.trans.shared.b16"] = {load_matrices<2, true>, Kind::kWholeWarp};
  table[name + "x4.trans.shared.b16"] = {load_matrices<4, true>, Kind::kWholeWarp};
}

}  // namespace ptx
