// SPDX-License-Identifier: Apache-2.0
// A view of a row-major matrix in someone else's memory.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shardwright::kernels::host {

/// What an operation does with a result that is already there.
enum class Store : bool {
  kOverwrite,
  kAdd  // the finished result is added to what is there
};

/// `rows` x `cols` elements, rows `stride` elements apart (at least `cols`).
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  Matrix() = default;
  Matrix(T* at, std::int64_t rows_, std::int64_t cols_) : Matrix(at, rows_, cols_, cols_) {}
  Matrix(T* at, std::int64_t rows_, std::int64_t cols_, std::int64_t stride_)
      : data(at), rows(rows_), cols(cols_), stride(stride_) {}
  /// A writable view is also a readable one.
  template <class U>
  requires(std::is_same_v<T, const U>) Matrix(const Matrix<U>& other)
      : Matrix(other.data, other.rows, other.cols, other.stride) {}

  T* row(std::int64_t index) const { return data + index * stride; }
};

}  // namespace shardwright::kernels::host
