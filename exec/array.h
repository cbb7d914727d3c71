// SPDX-License-Identifier: Apache-2.0
// Views of numbers in a device's memory: where they lie, their type and their shape. They own
// nothing and mean nothing on another device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright::exec {

/// The address `elements` of `dtype` behind `data`.
inline void* advance(void* data, DType dtype, std::int64_t elements) {
  return static_cast<std::byte*>(data) + elements * bytes_of(dtype);
}

/// `size` elements, one after the other.
struct Array {
  void* data = nullptr;
  DType dtype = DType::kFp32;
  std::int64_t size = 0;

  Bytes bytes() const { return size * bytes_of(dtype); }
  Array part(std::int64_t first, std::int64_t count) const {
    return {advance(data, dtype, first), dtype, count};
  }
};

/// `rows` x `cols` elements, row-major, rows `stride` elements apart.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kFp32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  Matrix() = default;
  Matrix(void* at, DType type, std::int64_t rows_, std::int64_t cols_)
      : Matrix(at, type, rows_, cols_, cols_) {}
  Matrix(void* at, DType type, std::int64_t rows_, std::int64_t cols_, std::int64_t stride_)
      : data(at), dtype(type), rows(rows_), cols(cols_), stride(stride_) {}

  Matrix row_range(std::int64_t first, std::int64_t count) const {
    return {advance(data, dtype, first * stride), dtype, count, cols, stride};
  }
  Matrix col_range(std::int64_t first, std::int64_t count) const {
    return {advance(data, dtype, first), dtype, rows, count, stride};
  }
};

/// `heads` vectors of `size` elements in each of `tokens` tokens, tokens `stride` elements apart.
/// A matrix is one head a token.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::kFp32;
  std::int64_t tokens = 0;
  std::int64_t heads = 1;
  std::int64_t size = 0;
  std::int64_t stride = 0;

  Heads() = default;
  Heads(void* at, DType type, std::int64_t tokens_, std::int64_t heads_, std::int64_t size_,
        std::int64_t stride_)
      : data(at), dtype(type), tokens(tokens_), heads(heads_), size(size_), stride(stride_) {}
  Heads(const Matrix& rows) : Heads(rows.data, rows.dtype, rows.rows, 1, rows.cols, rows.stride) {}
};

}  // namespace shardwright::exec
