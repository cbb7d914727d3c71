// SPDX-License-Identifier: Apache-2.0
// CUDA's short vectors, with the alignment that makes one access of each.
#pragma once

#define CUDA_ON_CPU_VECTOR(type, base, bytes2, bytes4)            \
  struct alignas(bytes2) type##2 {                                \
    base x, y;                                                    \
  };                                                              \
  struct type##3 {                                                \
    base x, y, z;                                                 \
  };                                                              \
  struct alignas(bytes4) type##4 {                                \
    base x, y, z, w;                                              \
  };                                                              \
  inline type##2 make_##type##2(base x, base y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline type##4 make_##type##4(base x, base y, base z, base w) { \
    return {x, y, z, w};                                          \
  }

CUDA_ON_CPU_VECTOR(float, float, 8, 16)
CUDA_ON_CPU_VECTOR(int, int, 8, 16)
CUDA_ON_CPU_VECTOR(ushort, unsigned short, 4, 8)
CUDA_ON_CPU_VECTOR(double, double, 16, 16)
CUDA_ON_CPU_VECTOR(longlong, long long, 16, 16)
CUDA_ON_CPU_VECTOR(ulonglong, unsigned long long, 16, 16)
#undef CUDA_ON_CPU_VECTOR

// uint3 is needed earlier, for threadIdx.
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
