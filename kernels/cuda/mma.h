// SPDX-License-Identifier: Apache-2.0
// Tensor-core and asynchronous-copy instructions of sm_80 and later, each as one function with its
// layout of fragments. For .cu files only. (PTX ISA, "Warp-level matrix instructions" and "Data
// movement: asynchronous copy".)
//
// With lane l of a warp, g = l / 4 and t = l % 4, and the low half of a register holding the
// element with the lower index:
//
//   A [16 x 16], 4 registers   a[0] = A[g    ][2t, 2t + 1]    a[2] = A[g    ][2t + 8, 2t + 9]
//                              a[1] = A[g + 8][2t, 2t + 1]    a[3] = A[g + 8][2t + 8, 2t + 9]
//   B [16 x 8],  2 registers   b[0] = B[2t, 2t + 1][g]        b[1] = B[2t + 8, 2t + 9][g]
//   C [16 x 8],  4 floats      c[0], c[1] = C[g][2t, 2t + 1]  c[2], c[3] = C[g + 8][2t, 2t + 1]
//
// Two neighbouring C tiles [16 x 16], packed to bf16, are an A fragment: a = {pack(c[0], c[1]),
// pack(c[2], c[3]), pack(next[0], next[1]), pack(next[2], next[3])}.
//
// An 8 x 8 matrix M of bf16 gives lane l the elements M[g][2t, 2t + 1] in one register, and
// transposed M[2t, 2t + 1][g]. So, with rows of 16 bytes anywhere in shared memory:
//   A (row-major)           ldmatrix_x4: matrices rows 0-7, rows 8-15, then both again 8 columns on
//   B from B^T (n-major)    ldmatrix_x2: the 8 rows n, columns k 0-7 and 8-15
//   B (row-major, k-major)  ldmatrix_x2_transposed: rows k 0-7, then rows k 8-15
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace shardwright::kernels::cuda {

/// Two floats rounded to nearest bf16, `low` in the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// C += A B with fp32 sums. All 32 lanes take part.
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[2]) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::mma_16x8x16(c, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#ifndef SHARDWRIGHT_CUDA_ON_CPU
__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

/// The same pointer into shared memory, in a register of its own: the compiler cannot take it apart
/// into the sum it was, whose parts would each take a register in a loop.
template <class T>
__device__ __forceinline__ T* in_one_register(T* shared) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  return shared;
#else
  std::uint32_t address = shared_address(shared);
  asm volatile("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
#endif
}

/// Four 8 x 8 matrices into one register each. Lane l points at row l % 8 of matrix l / 8: 16 bytes
/// of shared memory, aligned to 16. All 32 lanes take part.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::ldmatrix(r, row, 4, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

/// As ldmatrix_x4, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::ldmatrix(r, row, 4, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

/// Two matrices: lanes 0 to 15 point at their rows; the other lanes' addresses are not read.
__device__ __forceinline__ void ldmatrix_x2(std::uint32_t (&r)[2], const void* row) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::ldmatrix(r, row, 2, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}

/// As ldmatrix_x2, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x2_transposed(std::uint32_t (&r)[2], const void* row) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::ldmatrix(r, row, 2, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}

/// Begins to copy 4 or 16 bytes from global to shared memory (16 of them past the L1 cache), or to
/// write zeros when `valid` is false; then `global` may be any address. Both addresses are
/// multiples of kBytes.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 16);
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::async_copy(shared, valid ? global : nullptr, kBytes);
#else
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
  }
#endif
}

/// Ends a group of copies of this thread; it may be empty.
__device__ __forceinline__ void cp_async_commit() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most the `kLeft` latest groups of this thread are still under way. Other threads
/// see the data after a __syncthreads that follows.
template <int kLeft>
__device__ __forceinline__ void cp_async_wait() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::async_wait(kLeft);
#else
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
#endif
}

/// __syncthreads for warps that meet from different places of the code, as often as each other: the
/// hardware counts arrivals, but __syncthreads promises nothing when warps take different branches.
__device__ __forceinline__ void block_barrier() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  __syncthreads();
#else
  asm volatile("bar.sync 0;" ::: "memory");
#endif
}

}  // namespace shardwright::kernels::cuda
