// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kFp8Tile = 64;
constexpr int kSegment = kFp8Multiple;
constexpr int kSegments = kFp8Tile / kSegment;
/// Odd, so that columns of a tile lie in different banks.
constexpr int kTileStride = kFp8Tile + 1;
static_assert(kThreads == kFp8Tile * kSegments);

struct Fp8Source {
  const BFloat16* data;
  std::int64_t rows, cols, stride;

  __host__ __device__ std::int64_t tiles_across() const { return (cols + kFp8Tile - 1) / kFp8Tile; }
  __host__ __device__ std::int64_t tiles() const {
    return tiles_across() * ((rows + kFp8Tile - 1) / kFp8Tile);
  }
};

/// What a thread has of a tile: 16 neighbours of a row.
struct TilePlace {
  std::int64_t row, col;
  bool inside;

  __device__ TilePlace(const Fp8Source& from, std::int64_t tile)
      : row(tile / from.tiles_across() * kFp8Tile + threadIdx.x / kSegments),
        col(tile % from.tiles_across() * kFp8Tile + threadIdx.x % kSegments * kSegment),
        inside(row < from.rows && col < from.cols) {}
};

/// And of its transpose: 16 neighbours of a column, which begin at `row`.
struct TurnedPlace {
  int tile_row, tile_col;
  std::int64_t row, col;
  bool inside;

  __device__ TurnedPlace(const Fp8Source& from, std::int64_t tile)
      : tile_row(threadIdx.x % kSegments * kSegment),
        tile_col(threadIdx.x / kSegments),
        row(tile / from.tiles_across() * kFp8Tile + tile_row),
        col(tile % from.tiles_across() * kFp8Tile + tile_col),
        inside(row < from.rows && col < from.cols) {}
};

/// Zeros outside the matrix.
template <int N>
__device__ __forceinline__ void load_segment(const Fp8Source& from, const TilePlace& at,
                                             float (&v)[kSegment]) {
  const BFloat16* p = from.data + at.row * from.stride + at.col;
#pragma unroll
  for (int i = 0; i < kSegment; i += N) {
    float part[N];
#pragma unroll
    for (int j = 0; j < N; ++j) part[j] = 0;
    if (at.inside) load(p + i, part);
#pragma unroll
    for (int j = 0; j < N; ++j) v[i + j] = part[j];
  }
}

__device__ __forceinline__ void put_segment(std::uint16_t* tile, const float (&v)[kSegment]) {
  std::uint16_t* to =
      tile + threadIdx.x / kSegments * kTileStride + threadIdx.x % kSegments * kSegment;
#pragma unroll
  for (int i = 0; i < kSegment; ++i)
    to[i] = static_cast<std::uint16_t>(__float_as_uint(v[i]) >> 16);
}

__device__ __forceinline__ void take_column(const std::uint16_t* tile, const TurnedPlace& at,
                                            float (&v)[kSegment]) {
  const std::uint16_t* from = tile + at.tile_row * kTileStride + at.tile_col;
#pragma unroll
  for (int i = 0; i < kSegment; ++i)
    v[i] = __uint_as_float(static_cast<std::uint32_t>(from[i * kTileStride]) << 16);
}

struct LargerWord {
  __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

/// The bits of the largest magnitude; a NaN is larger than all numbers.
__device__ __forceinline__ unsigned largest_of(const float (&v)[kSegment]) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kSegment; ++i)
    largest = LargerWord()(largest, __float_as_uint(v[i]) & 0x7fffffffu);
  return largest;
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    largest_of_tensor_kernel(Fp8Source from, unsigned* largest) {
  __shared__ unsigned shared[kThreads / 32];
  unsigned mine = 0;
  for (std::int64_t tile = blockIdx.x; tile < from.tiles(); tile += gridDim.x) {
    float v[kSegment];
    load_segment<N>(from, TilePlace(from, tile), v);
    mine = LargerWord()(mine, largest_of(v));
  }
  mine = block_reduce<kThreads>(mine, static_cast<int>(threadIdx.x), shared, LargerWord());
  if (threadIdx.x == 0) atomicMax(largest, mine);
}

/// Of each row and of each column; null: not looked for.
template <int N>
__global__ void __launch_bounds__(kThreads)
    largest_of_rows_kernel(Fp8Source from, unsigned* of_rows, unsigned* of_columns) {
  __shared__ std::uint16_t shared[kFp8Tile * kTileStride];
  for (std::int64_t tile = blockIdx.x; tile < from.tiles(); tile += gridDim.x) {
    float v[kSegment];
    const TilePlace at(from, tile);
    load_segment<N>(from, at, v);
    if (of_rows != nullptr) {
      const unsigned largest = warp_reduce<kSegments>(largest_of(v), LargerWord());
      if (at.inside && threadIdx.x % kSegments == 0) atomicMax(of_rows + at.row, largest);
    }
    if (of_columns == nullptr) continue;
    put_segment(shared, v);
    __syncthreads();
    const TurnedPlace turned(from, tile);
    take_column(shared, turned, v);
    const unsigned largest = warp_reduce<kSegments>(largest_of(v), LargerWord());
    if (turned.inside && threadIdx.x % kSegments == 0) atomicMax(of_columns + turned.col, largest);
    __syncthreads();
  }
}

/// From the bits of largest magnitudes to what products are multiplied by.
__global__ void __launch_bounds__(kThreads)
    finish_rows_kernel(float* scales, std::int64_t count, Fp8Format format) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += threads)
    scales[i] = inverse_scale(row_scale(scales[i], format));
}

/// Two numbers rounded to fp8, the first in the low byte.
__device__ __forceinline__ unsigned code_pair(Fp8Format format, float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  if (format == Fp8Format::kE4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return static_cast<unsigned>(to_fp8(format, low)) | static_cast<unsigned>(to_fp8(format, high))
                                                          << 8;
#endif
}

/// The codes of a segment, at 16 bytes of `to`.
__device__ __forceinline__ void store_codes(const Fp8Matrix& to, std::int64_t row, std::int64_t col,
                                            const float (&v)[kSegment], float scale) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = code_pair(to.format, v[4 * i] * scale, v[4 * i + 1] * scale) |
               code_pair(to.format, v[4 * i + 2] * scale, v[4 * i + 3] * scale) << 16;
  }
  store_word(to.codes + row * to.cols + col, make_uint4(words[0], words[1], words[2], words[3]));
}

/// What a segment that begins at a row and column of `to` is multiplied by. All lanes take part.
template <Fp8Scaling kScaling>
__device__ __forceinline__ float scale_of(const Fp8Matrix& to, const unsigned* tensor_largest,
                                          std::int64_t row, std::int64_t col, bool inside,
                                          const float (&v)[kSegment]) {
  if constexpr (kScaling == Fp8Scaling::kTensor) {
    return tensor_scale(__uint_as_float(*tensor_largest), to.format);
  } else if constexpr (kScaling == Fp8Scaling::kRows) {
    return inside ? 1 / static_cast<const float*>(to.scales)[row] : 1.0f;  // a power of two
  } else {
    const unsigned largest = warp_reduce<kFp8Block / kSegment>(largest_of(v), LargerWord());
    const std::uint8_t exponent = block_exponent(__uint_as_float(largest), to.format);
    if (inside && col % kFp8Block == 0)
      static_cast<std::uint8_t*>(
          to.scales)[block_scale_index(row, col / kFp8Block, to.cols / kFp8Block)] = exponent;
    return block_scale(exponent);
  }
}

template <Fp8Scaling kScaling, int N>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Fp8Source from, Fp8Matrix rows, Fp8Matrix columns, const unsigned* largest) {
  __shared__ std::uint16_t shared[kFp8Tile * kTileStride];
  if (kScaling == Fp8Scaling::kTensor && blockIdx.x == 0 && threadIdx.x == 0) {
    for (const Fp8Matrix* to : {&rows, &columns}) {
      if (to->codes == nullptr) continue;
      const float found = __uint_as_float(*largest);
      auto* scales = static_cast<float*>(to->scales);
      scales[0] = found;
      scales[1] = inverse_scale(tensor_scale(found, to->format));
    }
  }
  for (std::int64_t tile = blockIdx.x; tile < from.tiles(); tile += gridDim.x) {
    float v[kSegment];
    const TilePlace at(from, tile);
    load_segment<N>(from, at, v);
    if (rows.codes != nullptr) {
      const float scale = scale_of<kScaling>(rows, largest, at.row, at.col, at.inside, v);
      if (at.inside) store_codes(rows, at.row, at.col, v, scale);
    }
    if (columns.codes == nullptr) continue;
    put_segment(shared, v);
    __syncthreads();
    const TurnedPlace turned(from, tile);
    take_column(shared, turned, v);
    const float scale =
        scale_of<kScaling>(columns, largest, turned.col, turned.row, turned.inside, v);
    if (turned.inside) store_codes(columns, turned.col, turned.row, v, scale);
    __syncthreads();
  }
}

void clear(cudaStream_t stream, const Fp8Matrix& m, std::int64_t bytes) {
  if (m.codes != nullptr)
    SHARDWRIGHT_CUDA(cudaMemsetAsync(m.scales, 0, static_cast<std::size_t>(bytes), stream));
}

template <int N>
void find_rows(cudaStream_t stream, const Fp8Source& from, const Fp8Matrix& rows,
               const Fp8Matrix& columns) {
  clear(stream, rows, fp8_scale_bytes(Fp8Scaling::kRows, rows.rows, rows.cols));
  clear(stream, columns, fp8_scale_bytes(Fp8Scaling::kRows, columns.rows, columns.cols));
  const auto words = [](const Fp8Matrix& m) {
    return m.codes != nullptr ? static_cast<unsigned*>(m.scales) : nullptr;
  };
  launch(largest_of_rows_kernel<N>, {blocks_for(from.tiles(), 1), kThreads}, stream, from,
         words(rows), words(columns));
  for (const Fp8Matrix* m : {&rows, &columns}) {
    if (m->codes == nullptr) continue;
    launch(finish_rows_kernel, {blocks_for(m->rows, kThreads), kThreads}, stream, m->floats(),
           m->rows, m->format);
  }
}

template <int N>
void quantize_with(cudaStream_t stream, const Fp8Source& from, const Fp8Matrix& rows,
                   const Fp8Matrix& columns) {
  const Fp8Matrix& first = rows.codes != nullptr ? rows : columns;
  const unsigned blocks = blocks_for(from.tiles(), 1);
  auto* largest = static_cast<unsigned*>(first.scales);
  switch (first.scaling) {
    case Fp8Scaling::kTensor:
      clear(stream, first, sizeof *largest);
      launch(largest_of_tensor_kernel<N>, {blocks, kThreads}, stream, from, largest);
      launch(quantize_kernel<Fp8Scaling::kTensor, N>, {blocks, kThreads}, stream, from, rows,
             columns, largest);
      return;
    case Fp8Scaling::kRows:
      find_rows<N>(stream, from, rows, columns);
      launch(quantize_kernel<Fp8Scaling::kRows, N>, {blocks, kThreads}, stream, from, rows, columns,
             nullptr);
      return;
    case Fp8Scaling::kBlocks:
      break;
  }
  // Scales of a tile that no block has are read, too.
  clear(stream, rows, block_scales(rows.rows, rows.cols));
  clear(stream, columns, block_scales(columns.rows, columns.cols));
  launch(quantize_kernel<Fp8Scaling::kBlocks, N>, {blocks, kThreads}, stream, from, rows, columns,
         nullptr);
}

}  // namespace

void quantize(cudaStream_t stream, host::Matrix<const BFloat16> from, const Fp8Matrix& rows,
              const Fp8Matrix& columns) {
  if (from.rows == 0 || from.cols == 0) return;
  const Fp8Source source{from.data, from.rows, from.cols, from.stride};
  constexpr int kN = kWidth<BFloat16>;
  with_width<kN>(from.stride % kN == 0 && aligned<kN>(from.data),
                 [&](auto n) { quantize_with<n()>(stream, source, rows, columns); });
}

}  // namespace shardwright::kernels::cuda
