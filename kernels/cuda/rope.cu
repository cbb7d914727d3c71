// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rope.h"

namespace shardwright::kernels::cuda {
namespace {

template <class T>
struct RopeArguments {
  host::Rows rows;
  RopeView table;
  const std::int32_t* positions;
  std::int64_t seq;
  float direction;
  T* x;
};

// A row of work is a token: all chunks of pairs of all heads.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArguments<T> a) {
  const auto pairs = static_cast<unsigned>(a.table.pairs);
  const unsigned chunks = pairs / N;
  for_row_chunks(a.rows.tokens, a.rows.heads * chunks, [&](std::int64_t token, std::int64_t work) {
    const std::int64_t position = a.positions != nullptr ? a.positions[token] : token % a.seq;
    const unsigned head = static_cast<unsigned>(work) / chunks;
    const unsigned i = static_cast<unsigned>(work) % chunks * N;
    T* first = a.x + token * a.rows.stride + head * a.rows.cols + i;
    float cosine[N], sine[N], v[N], w[N];
    if (position >= 0 && position < a.table.positions) {
      load(a.table.cosine + position * pairs + i, cosine);
      load(a.table.sine + position * pairs + i, sine);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) cosine[j] = sine[j] = __uint_as_float(0x7fc00000u);
    }
    load(first, v);
    load(first + pairs, w);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      // The roundings of kernels/host/simd/rows.cc.
      const float s = sine[j] * a.direction;
      const float turned = __fmaf_rn(-w[j], s, __fmul_rn(v[j], cosine[j]));
      w[j] = __fmaf_rn(v[j], s, __fmul_rn(w[j], cosine[j]));
      v[j] = turned;
    }
    store(first, v);
    store(first + pairs, w);
  });
}

}  // namespace

template <class T>
void rope(cudaStream_t stream, const host::Rows& rows, const RopeView& table,
          const std::int32_t* positions, std::int64_t seq, bool backward, T* x) {
  if (rows.count() == 0 || table.pairs == 0) return;
  constexpr int kN = kWidth<T>;
  const bool wide = (table.pairs | rows.cols | rows.stride) % kN == 0 &&
                    aligned<kN>(static_cast<const T*>(x), table.cosine, table.sine);
  const RopeArguments<T> arguments{rows, table, positions, seq, backward ? -1.0f : 1.0f, x};
  with_width<kN>(wide, [&](auto n) {
    const RowTiles tiles = row_tiles(rows.tokens, rows.heads * (table.pairs / n()));
    launch(rope_kernel<T, n()>, {tiles.grid, tiles.block}, stream, arguments);
  });
}

template void rope<float>(cudaStream_t, const host::Rows&, const RopeView&, const std::int32_t*,
                          std::int64_t, bool, float*);
template void rope<BFloat16>(cudaStream_t, const host::Rows&, const RopeView&, const std::int32_t*,
                             std::int64_t, bool, BFloat16*);

}  // namespace shardwright::kernels::cuda
