// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/row_offset.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

// Element j is paired with element j + pairs ("half-rotate" order):
// (a, b) becomes (a cos - b sin, b cos + a sin); backward turns the other way.
template <class T>
void rope(const RopeRows<T>& r, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t token = row / r.rows.heads;
    const std::int64_t position = r.positions != nullptr ? r.positions[token] : token % r.seq;
    const float* cosine = r.cosine + position * r.pairs;
    const float* sine = r.sine + position * r.pairs;
    T* x = r.x + row_offset(r.rows, row);
    for_vectors(r.pairs, [&](std::int64_t i, auto lanes) {
      const Vec c = load(cosine + i, lanes);
      const Vec s = load(sine + i, lanes) * splat(r.direction);
      const Vec a = load(x + i, lanes);
      const Vec b = load(x + r.pairs + i, lanes);
      store(x + i, madd(-b, s, a * c), lanes);
      store(x + r.pairs + i, madd(a, s, b * c), lanes);
    });
  }
}

template void rope<float>(const RopeRows<float>&, std::int64_t, std::int64_t);
template void rope<BFloat16>(const RopeRows<BFloat16>&, std::int64_t, std::int64_t);

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
