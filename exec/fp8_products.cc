// SPDX-License-Identifier: Apache-2.0
#include "exec/fp8_products.h"

#include <fmt/core.h>

#include <utility>

#include "exec/libraries/rules.h"
#include "sim/core/arena.h"
#include "sim/core/base/check.h"
#include "sim/core/units.h"

namespace shardwright::exec {

namespace {

using kernels::Fp8Format;
using kernels::Fp8Matrix;
using kernels::Fp8Scaling;

Fp8Scaling scaling_of(Fp8Recipe recipe) {
  switch (recipe) {
    case Fp8Recipe::kTensorwise:
      return Fp8Scaling::kTensor;
    case Fp8Recipe::kRowwise:
      return Fp8Scaling::kRows;
    case Fp8Recipe::kMxfp8:
      return Fp8Scaling::kBlocks;
    case Fp8Recipe::kDelayed:
    case Fp8Recipe::kBlock:
      break;
  }
  SHARDWRIGHT_CHECK(false, "the executor has no fp8 of recipe {}", name_of(recipe));
  return Fp8Scaling::kTensor;
}

}  // namespace

Fp8Products::Fp8Products(const Fp8Workspace& plan, std::byte* room, Fp8Recipe recipe,
                         Device& device, StreamId stream)
    : device_(device),
      stream_(stream),
      scaling_(scaling_of(recipe)),
      turns_(device.multiplies_turned(scaling_)),
      left_{room, plan.left_bytes},
      right_{room + plan.left_bytes, plan.right_bytes},
      gradient_{room + plan.left_bytes + plan.right_bytes, plan.gradient_bytes} {}

Fp8Matrix Fp8Products::operand(const Place& place, std::int64_t rows, std::int64_t cols,
                               Fp8Format format) const {
  const Bytes codes = round_up(rows * cols, kArenaAlignment);
  SHARDWRIGHT_CHECK(codes + kernels::fp8_scale_bytes(scaling_, rows, cols) <= place.bytes,
                    "an operand of {} x {} in {} bytes", rows, cols, place.bytes);
  return {.codes = reinterpret_cast<std::uint8_t*>(place.data),
          .scales = place.data + codes,
          .rows = rows,
          .cols = cols,
          .format = format,
          .scaling = scaling_};
}

Fp8Format Fp8Products::gradient_format() const {
  return scaling_ == Fp8Scaling::kTensor ? Fp8Format::kE5M2 : Fp8Format::kE4M3;
}

void Fp8Products::forward(Matrix x, Matrix w, const Addends& addends, Matrix y) {
  const Fp8Matrix left = operand(left_, x.rows, x.cols, Fp8Format::kE4M3);
  const Fp8Matrix right = operand(right_, w.rows, w.cols, Fp8Format::kE4M3);
  device_.quantize(stream_, x, left, {});
  device_.quantize(stream_, w, right, {});
  device_.fp8_product(stream_, left, right, addends, y);
}

Fp8Matrix Fp8Products::turned(Fp8Matrix rows) {
  std::swap(rows.rows, rows.cols);
  rows.turned = true;
  return rows;
}

void Fp8Products::input_gradient(Matrix d_y, Matrix w, Matrix d_x) {
  if (turns_) {
    const Fp8Matrix left = operand(gradient_, d_y.rows, d_y.cols, gradient_format());
    const Fp8Matrix right = operand(right_, w.rows, w.cols, Fp8Format::kE4M3);
    device_.quantize(stream_, d_y, left, {});
    device_.quantize(stream_, w, right, {});
    device_.fp8_product(stream_, left, turned(right), {}, d_x);
  } else {
    const Fp8Matrix left = operand(left_, d_y.rows, d_y.cols, gradient_format());
    const Fp8Matrix right = operand(right_, w.cols, w.rows, Fp8Format::kE4M3);
    device_.quantize(stream_, d_y, left, operand(gradient_, d_y.cols, d_y.rows, gradient_format()));
    device_.quantize(stream_, w, {}, right);
    device_.fp8_product(stream_, left, right, {}, d_x);
  }
  quantized_gradient_ = d_y.data;
}

void Fp8Products::weight_gradient(Matrix d_y, Matrix x, Matrix d_w, bool adds) {
  const bool is_made = quantized_gradient_ == d_y.data;
  const Addends addends{adds ? d_w : Matrix(), {}};
  if (turns_) {
    const Fp8Matrix left = operand(gradient_, d_y.rows, d_y.cols, gradient_format());
    const Fp8Matrix right = operand(right_, x.rows, x.cols, Fp8Format::kE4M3);
    if (!is_made) device_.quantize(stream_, d_y, left, {});
    device_.quantize(stream_, x, right, {});
    device_.fp8_product(stream_, turned(left), turned(right), addends, d_w);
  } else {
    const Fp8Matrix left = operand(gradient_, d_y.cols, d_y.rows, gradient_format());
    const Fp8Matrix right = operand(right_, x.cols, x.rows, Fp8Format::kE4M3);
    if (!is_made) device_.quantize(stream_, d_y, {}, left);
    device_.quantize(stream_, x, {}, right);
    device_.fp8_product(stream_, left, right, addends, d_w);
  }
}

std::string why_no_fp8(std::string_view gpu, int compute_major, int compute_minor,
                       Fp8Recipe recipe) {
  const int capability = 10 * compute_major + compute_minor;
  const std::string has =
      fmt::format("{} has compute capability {}.{}", gpu, compute_major, compute_minor);
  if (capability < 89) {
    return fmt::format(
        "precision is fp8, but {} and no tensor cores for it, expected 8.9 or newer or precision "
        "bf16",
        has);
  }
  if (recipe == Fp8Recipe::kRowwise &&
      capability != libraries::rule_number("cublas_lt.rowwise", "compute_capability")) {
    return fmt::format(
        "fp8_recipe is rowwise, but {} and cuBLASLt scales rows on 9.0 (H100, H200) only, expected "
        "tensorwise{}",
        has, capability >= 100 ? " or mxfp8" : "");
  }
  if (recipe == Fp8Recipe::kMxfp8 && capability < 100) {
    return fmt::format("fp8_recipe is mxfp8, but {}, expected 10.0 or newer or tensorwise{}", has,
                       capability == 90 ? " or rowwise" : "");
  }
  return "";
}

}  // namespace shardwright::exec
