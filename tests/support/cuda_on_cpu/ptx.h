// SPDX-License-Identifier: Apache-2.0
// PTX instructions that kernels reach through kernels/cuda/mma.h, lane by lane as the PTX ISA's
// tables of fragments say (sections "Matrix multiply-accumulate operation using mma instruction"
// and "ldmatrix").
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/support/cuda_on_cpu/cuda_bf16.h"
#include "tests/support/cuda_on_cpu/emulation.h"

namespace cuda_on_cpu {

struct MmaInput {
  const std::uint32_t* a;  // 4 registers
  const std::uint32_t* b;  // 2
  const float* c;          // 4
};

/// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32. Products are exact; a tensor core adds them
/// up in an order and precision of its own, here it is fp64, rounded once.
inline void mma_16x8x16(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  const MmaInput input{a, b, d};
  warp_collective(
      0xffffffffu,
      [](std::uint32_t, const void* const* in, void* const* out) {
        float a_matrix[16][16], b_matrix[16][8];
        const auto half = [](std::uint32_t pair, int which) {
          return std::bit_cast<float>((which == 0 ? pair << 16 : pair & 0xffff0000u));
        };
        for (int l = 0; l < 32; ++l) {
          const auto& from = *static_cast<const MmaInput*>(in[l]);
          const int group = l / 4, place = l % 4;
          for (int i = 0; i < 8; ++i) {
            const int row = group + (i / 2 % 2 == 0 ? 0 : 8);
            a_matrix[row][place * 2 + i % 2 + (i < 4 ? 0 : 8)] = half(from.a[i / 2], i % 2);
          }
          for (int i = 0; i < 4; ++i) {
            b_matrix[place * 2 + i % 2 + (i < 2 ? 0 : 8)][group] = half(from.b[i / 2], i % 2);
          }
        }
        for (int l = 0; l < 32; ++l) {
          for (int i = 0; i < 4; ++i) {
            const int row = l / 4 + (i < 2 ? 0 : 8), col = l % 4 * 2 + i % 2;
            float* to = static_cast<float*>(out[l]) + i;
            double sum = *to;
            for (int k = 0; k < 16; ++k) {
              sum += static_cast<double>(a_matrix[row][k]) * b_matrix[k][col];
            }
            *to = static_cast<float>(sum);
          }
        }
      },
      &input, d);
}

struct LdmatrixInput {
  const void* row;
  int matrices;
  bool transposed;
};

/// ldmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16: lanes 8 i to 8 i + 7 point at the rows
/// of matrix i.
inline void ldmatrix(std::uint32_t* registers, const void* row, int matrices, bool transposed) {
  const LdmatrixInput input{row, matrices, transposed};
  warp_collective(
      0xffffffffu,
      [](std::uint32_t, const void* const* in, void* const* out) {
        const auto at = [&](int l) { return static_cast<const LdmatrixInput*>(in[l]); };
        for (int i = 0; i < at(0)->matrices; ++i) {
          std::uint16_t matrix[8][8];
          for (int r = 0; r < 8; ++r) {
            const void* from = at(8 * i + r)->row;
            if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
              fail("ldmatrix from a row whose address is no multiple of 16");
            }
            std::memcpy(matrix[r], from, 16);
          }
          for (int l = 0; l < 32; ++l) {
            const int row_of = l / 4, col = l % 4 * 2;
            const bool turn = at(0)->transposed;
            const std::uint32_t low = turn ? matrix[col][row_of] : matrix[row_of][col];
            const std::uint32_t high = turn ? matrix[col + 1][row_of] : matrix[row_of][col + 1];
            static_cast<std::uint32_t*>(out[l])[i] = high << 16 | low;
          }
        }
      },
      &input, registers);
}

}  // namespace cuda_on_cpu
