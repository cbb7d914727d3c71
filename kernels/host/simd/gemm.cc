// SPDX-License-Identifier: Apache-2.0
// Matrix products by Eigen. The build renames Eigen's namespace for each instruction set, because
// its templates have the same names in all of them and the linker would keep only one.
#include <Eigen/Core>

#include "kernels/host/simd/ops.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Input = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using Output = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

Input input(const float* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return {data, rows, cols, Eigen::OuterStride<>(stride)};
}

template <class Product>
void assign(Output out, const Product& product, bool add) {
  if (add) {
    out.noalias() += product;
  } else {
    out.noalias() = product;
  }
}

}  // namespace

void gemm(Layout layout, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
          std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
          std::int64_t c_stride, bool add) {
  const Output out(c, m, n, Eigen::OuterStride<>(c_stride));
  switch (layout) {
    case Layout::kNT:
      assign(out, input(a, m, k, a_stride) * input(b, n, k, b_stride).transpose(), add);
      return;
    case Layout::kNN:
      assign(out, input(a, m, k, a_stride) * input(b, k, n, b_stride), add);
      return;
    case Layout::kTN:
      assign(out, input(a, k, m, a_stride).transpose() * input(b, k, n, b_stride), add);
      return;
  }
}

void fix_gemm_blocking() {
  Eigen::setCpuCacheSizes(std::ptrdiff_t{32} << 10, std::ptrdiff_t{1} << 20,
                          std::ptrdiff_t{16} << 20);
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
