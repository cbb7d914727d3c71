// SPDX-License-Identifier: Apache-2.0
// The 8-bit floating-point formats of OCP, and how numbers are scaled into them.
//
// E4M3 has 4 bits of precision up to 448 and no infinity, E5M2 has 3 bits up to 57344. Numbers are
// rounded to the nearest code, ties to even; what is larger than the largest code becomes that one,
// and NaN stays NaN. Products multiply codes and add in fp32, so operands are first multiplied by a
// scale that brings their largest magnitude to the largest code, and results are divided by it:
//
//   kTensor   one scale for all of an operand (tensorwise, of what is there now)
//   kRows     one for each row along which a product adds, a power of two (torchao's rowwise)
//   kBlocks   one for each 32 neighbours of such a row, a power of two kept as its exponent alone
//             (MXFP8: E8M0). It is rounded up, so that no element saturates.
//
// An operand that holds an infinity or NaN gives NaN wherever that scale reaches: a bad step shows.
#pragma once

#include <bit>
#include <cstdint>

namespace shardwright::kernels {

enum class Fp8Format : std::uint8_t { kE4M3, kE5M2 };
enum class Fp8Scaling : std::uint8_t { kTensor, kRows, kBlocks };

inline constexpr std::int64_t kFp8Block = 32;
inline constexpr std::uint8_t kFp8Nan = 0x7f;

/// Layout of a format: bits of the mantissa, bias of the exponent, the largest code.
template <Fp8Format kFormat>
struct Fp8Layout {
  static constexpr int kMantissa = kFormat == Fp8Format::kE4M3 ? 3 : 2;
  static constexpr int kBias = kFormat == Fp8Format::kE4M3 ? 7 : 15;
  static constexpr std::uint32_t kLargest = kFormat == Fp8Format::kE4M3 ? 0x7e : 0x7b;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << kMantissa;
};

/// 2 to a power that floats have as a normal number.
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

constexpr float fp8_largest(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? 448.0f : 57344.0f;
}

template <Fp8Format kFormat>
constexpr std::uint8_t to_fp8(float value) {
  using Layout = Fp8Layout<kFormat>;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t rounded =
      magnitude + ((1u << (Layout::kShift - 1)) - 1) + ((magnitude >> Layout::kShift) & 1u);
  const std::uint32_t normal = (rounded >> Layout::kShift) - Layout::kRebias;
  // Below the smallest normal number codes are as far apart as floats from this number on are.
  constexpr float kStep = power_of_two(24 - Layout::kBias - Layout::kMantissa);
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kStep) -
      std::bit_cast<std::uint32_t>(kStep);
  constexpr auto kNormal = std::bit_cast<std::uint32_t>(power_of_two(1 - Layout::kBias));
  std::uint32_t code = magnitude < kNormal ? small : normal;
  code = magnitude >= kNormal && normal > Layout::kLargest ? Layout::kLargest : code;
  code |= (bits >> 24) & 0x80u;
  return static_cast<std::uint8_t>(magnitude > 0x7f800000u ? kFp8Nan : code);
}

template <Fp8Format kFormat>
constexpr float fp8_to_float(std::uint8_t code) {
  using Layout = Fp8Layout<kFormat>;
  const std::uint32_t magnitude = code & 0x7fu;
  const float value =
      std::bit_cast<float>(magnitude << Layout::kShift) * power_of_two(127 - Layout::kBias);
  const std::uint32_t bits =
      magnitude > Layout::kLargest ? 0x7fc00000u : std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(code & 0x80u) << 24));
}

constexpr std::uint8_t to_fp8(Fp8Format format, float value) {
  return format == Fp8Format::kE4M3 ? to_fp8<Fp8Format::kE4M3>(value)
                                    : to_fp8<Fp8Format::kE5M2>(value);
}
constexpr float fp8_to_float(Fp8Format format, std::uint8_t code) {
  return format == Fp8Format::kE4M3 ? fp8_to_float<Fp8Format::kE4M3>(code)
                                    : fp8_to_float<Fp8Format::kE5M2>(code);
}

/// What numbers of which `largest` is the largest magnitude are multiplied by. Results are
/// multiplied by 1 / scale.
constexpr float tensor_scale(float largest, Fp8Format format) {
  constexpr float kMost = power_of_two(100);  // of numbers that are as good as zero
  if (largest == 0) return 1;
  const float scale = fp8_largest(format) / largest;
  return scale > kMost ? kMost : scale;
}
/// The same, rounded down to a power of two.
constexpr float row_scale(float largest, Fp8Format format) {
  const auto bits = std::bit_cast<std::uint32_t>(tensor_scale(largest, format));
  const bool ordinary = bits < 0x7f800000u;
  return std::bit_cast<float>(ordinary ? bits & 0x7f800000u : bits);
}

/// What results are multiplied by; one and the same NaN for all.
constexpr float inverse_scale(float scale) {
  return scale == scale ? 1 / scale : std::bit_cast<float>(0x7fc00000u);
}

inline constexpr std::uint8_t kE8m0Nan = 0xff;

/// The exponent of what a block is divided by: 2^(code - 127).
constexpr std::uint8_t block_exponent(float largest, Fp8Format format) {
  const auto bits = std::bit_cast<std::uint32_t>(largest / fp8_largest(format));
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  if (bits >= 0x7f800000u) return kE8m0Nan;
  return static_cast<std::uint8_t>(exponent > 0 ? exponent : 1);
}
constexpr float e8m0_to_float(std::uint8_t code) {
  return std::bit_cast<float>(code == kE8m0Nan ? 0x7fc00000u
                                               : static_cast<std::uint32_t>(code) << 23);
}
/// 1 / e8m0_to_float(code), of codes that block_exponent gives.
constexpr float block_scale(std::uint8_t code) {
  return code == kE8m0Nan ? e8m0_to_float(code) : power_of_two(127 - code);
}

/// Block scales stand in tiles of 128 rows and 4 blocks, 512 bytes each, in which rows 32 apart are
/// neighbours: what tensor cores read, and cuBLASLt takes. `blocks` of a row.
constexpr std::int64_t block_scale_index(std::int64_t row, std::int64_t block,
                                         std::int64_t blocks) {
  const std::int64_t tiles = (blocks + 3) / 4;
  const std::int64_t tile = row / 128 * tiles + block / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}
constexpr std::int64_t block_scales(std::int64_t rows, std::int64_t cols) {
  return (rows + 127) / 128 * 128 * (((cols + kFp8Block - 1) / kFp8Block + 3) / 4 * 4);
}

/// An operand of a product: `rows` of `cols` codes, one after the other, along which the product
/// adds, and what they were scaled by:
///
///   kTensor   two floats: the bits of the largest magnitude while it is looked for; 1 / scale
///   kRows     a float 1 / scale for each row
///   kBlocks   block_scales() exponents, by block_scale_index()
struct Fp8Matrix {
  std::uint8_t* codes = nullptr;
  void* scales = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Fp8Format format = Fp8Format::kE4M3;
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  /// The codes are those of the transpose, [cols, rows]: one scale serves both ways, and some GPUs
  /// multiply them so.
  bool turned = false;

  float* floats() const { return static_cast<float*>(scales); }
  std::uint8_t* exponents() const { return static_cast<std::uint8_t*>(scales); }
};

constexpr std::int64_t fp8_scale_bytes(Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  return scaling == Fp8Scaling::kTensor ? 8
         : scaling == Fp8Scaling::kRows ? 4 * rows
                                        : block_scales(rows, cols);
}

}  // namespace shardwright::kernels
