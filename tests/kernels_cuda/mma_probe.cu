// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.h"
#include "tests/kernels_cuda/mma_probe.h"

namespace shardwright::kernels::cuda {
namespace {

__global__ void __launch_bounds__(32)
    mma_probe_kernel(const BFloat16* a, const BFloat16* b, bool transposed_b, float* c) {
  BFloat16* shared_a = dynamic_shared<BFloat16>();  // [16, 16]
  BFloat16* shared_b = shared_a + 256;              // [16, 8] or [8, 16]
  const int lane = static_cast<int>(threadIdx.x);
  cp_async<16>(shared_a + 8 * lane, a + 8 * lane);
  cp_async<16>(shared_b + 8 * (lane % 16), b + 8 * (lane % 16));
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();

  std::uint32_t a_fragment[4], b_fragments[4];  // the second of B like the first
  // Matrices: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15.
  ldmatrix_x4(a_fragment, shared_a + lane % 16 * 16 + lane / 16 * 8);
  if (transposed_b) {
    ldmatrix_x4(b_fragments, shared_b + lane % 8 * 16 + lane / 8 % 2 * 8);
  } else {
    ldmatrix_x4_transposed(b_fragments, shared_b + lane % 16 * 8);
  }
  const int row = lane / 4, col = lane % 4 * 2;
  float sum[4] = {c[row * 8 + col], c[row * 8 + col + 1], c[(row + 8) * 8 + col],
                  c[(row + 8) * 8 + col + 1]};
  mma_16x8x16(sum, a_fragment, {b_fragments[0], b_fragments[1]});
  c[row * 8 + col] = sum[0];
  c[row * 8 + col + 1] = sum[1];
  c[(row + 8) * 8 + col] = sum[2];
  c[(row + 8) * 8 + col + 1] = sum[3];
}

__global__ void __launch_bounds__(32)
    ldmatrix_probe_kernel(const BFloat16* matrices, bool transposed, std::uint32_t* out) {
  BFloat16* shared = dynamic_shared<BFloat16>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared[i] = matrices[i];
  __syncwarp();
  std::uint32_t registers[4];
  if (transposed) {
    ldmatrix_x4_transposed(registers, shared + 8 * lane);
  } else {
    ldmatrix_x4(registers, shared + 8 * lane);
  }
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = registers[i];
}

}  // namespace

void mma_probe(cudaStream_t stream, const BFloat16* a, const BFloat16* b, bool transposed_b,
               float* c) {
  launch(mma_probe_kernel, {1, 32, 2 * (256 + 128)}, stream, a, b, transposed_b, c);
}

void ldmatrix_probe(cudaStream_t stream, const BFloat16* matrices, bool transposed,
                    std::uint32_t* out) {
  launch(ldmatrix_probe_kernel, {1, 32, 2 * 256}, stream, matrices, transposed, out);
}

}  // namespace shardwright::kernels::cuda
