// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

template <class T>
void widen(const T* in, float* out, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) { store(out + i, load(in + i, lanes), lanes); });
}

template <class T>
void narrow(const float* in, T* out, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) { store(out + i, load(in + i, lanes), lanes); });
}

template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(out + i, load(a + i, lanes) + load(b + i, lanes), lanes);
  });
}

template <class T>
void accumulate(const T* in, float* total, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(total + i, load(total + i, lanes) + load(in + i, lanes), lanes);
  });
}

void narrow_stochastic(const float* in, const std::uint32_t* random, int shift, BFloat16* out,
                       std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    const Vec value = load(in + i, lanes);
    const WordVec noise =
        (reinterpret_cast<WordVec>(load(reinterpret_cast<const float*>(random) + i, lanes)) >>
         shift) &
        0xffffu;
    const WordVec bits = reinterpret_cast<WordVec>(value);
    const WordVec moved = (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + noise) & 0xffff0000u;
    store(out + i, reinterpret_cast<Vec>(moved), lanes);
  });
}

#define SHARDWRIGHT_INSTANTIATE(T)                            \
  template void widen<T>(const T*, float*, std::int64_t);     \
  template void narrow<T>(const float*, T*, std::int64_t);    \
  template void add<T>(const T*, const T*, T*, std::int64_t); \
  template void accumulate<T>(const T*, float*, std::int64_t);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
