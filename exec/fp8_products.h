// SPDX-License-Identifier: Apache-2.0
// The products of layers in fp8: operands are quantised into the workspace just before they are
// multiplied, along the dimension over which the product adds.
//
//   forward           y[T, N]  = x[T, K]   w[N, K]^T
//   input gradient    dx[T, K] = dy[T, N]  (w^T)[K, N]^T
//   weight gradient   dw[N, K] = (dy^T)[N, T]  (x^T)[K, T]^T
//
// tensorwise has x and w in E4M3 and dy, whose numbers are further apart, in E5M2 (as
// TransformerEngine's current scaling and torchao); rowwise and mxfp8 have all in E4M3. A scale is
// of what is there now: of the whole weight, as it was gathered, and of the tokens of one
// micro-batch of one rank. So W ranks multiply what one rank that accumulates W micro-batches does,
// to the bit and without any collective; two micro-batches joined into one have other scales.
//
// Backward wants transposes of what forward reads. Where a device multiplies codes both ways
// (multiplies_turned) it is handed those of rows instead.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "exec/device.h"
#include "sim/core/parallelism.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {

class Fp8Products {
 public:
  /// Works in `room` of the device, which the plan sizes. Recipes are tensorwise, rowwise, mxfp8.
  Fp8Products(const Fp8Workspace& plan, std::byte* room, Fp8Recipe recipe, Device& device,
              StreamId stream);

  void forward(Matrix x, Matrix w, const Addends& addends, Matrix y);
  void input_gradient(Matrix d_y, Matrix w, Matrix d_x);
  /// `adds`: the finished product is added to what is there.
  void weight_gradient(Matrix d_y, Matrix x, Matrix d_w, bool adds);
  /// The gradient that the last input_gradient quantised may change from now on.
  void forget() { quantized_gradient_ = nullptr; }

 private:
  struct Place {
    std::byte* data = nullptr;
    Bytes bytes = 0;
  };
  kernels::Fp8Matrix operand(const Place& place, std::int64_t rows, std::int64_t cols,
                             kernels::Fp8Format format) const;
  kernels::Fp8Format gradient_format() const;
  /// The operand of a product that adds along the other dimension of a matrix, made of its rows.
  static kernels::Fp8Matrix turned(kernels::Fp8Matrix rows);

  Device& device_;
  StreamId stream_;
  kernels::Fp8Scaling scaling_;
  bool turns_;  // no transposes are made
  Place left_, right_, gradient_;
  const void* quantized_gradient_ = nullptr;  // what is in gradient_, turned
};

// Which products in fp8 a GPU has, by its compute capability: tables of cuBLAS's documentation
// (cublasLtMatmul, narrow precisions) of what layouts and which scales it takes where.

/// Codes with one scale may be multiplied along either dimension: Blackwell of data centres (10,
/// 11). Ada, Hopper and GeForce Blackwell want the one that is summed over last.
constexpr bool multiplies_fp8_both_ways(int compute_major) {
  return compute_major == 10 || compute_major == 11;
}

/// Why the GPU cannot train by the recipe, as a sentence with what would do; empty: it can.
std::string why_no_fp8(std::string_view gpu, int compute_major, int compute_minor,
                       Fp8Recipe recipe);

}  // namespace shardwright::exec
