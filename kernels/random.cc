// SPDX-License-Identifier: Apache-2.0
#include "kernels/random.h"

#include <cmath>
#include <numbers>

namespace shardwright::kernels {
namespace {

/// High 64 bits of a 64 x 64 bit product.
std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a_low = a & 0xffffffffu, a_high = a >> 32;
  const std::uint64_t b_low = b & 0xffffffffu, b_high = b >> 32;
  const std::uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
  const std::uint64_t carry = a_low * b_high + (middle & 0xffffffffu);
  return a_high * b_high + (middle >> 32) + (carry >> 32);
}

/// normal(2 pair) and normal(2 pair + 1), which cost little more than one of them.
std::array<double, 2> normal_pair(const RandomStream& stream, std::uint64_t pair) {
  const auto bits = stream.block(pair);
  // 53 bits for the radius, shifted away from 0 so that the logarithm is finite.
  const std::uint64_t radius_bits = (std::uint64_t{bits[1]} << 32 | bits[0]) >> 11;
  const std::uint64_t angle_bits = (std::uint64_t{bits[3]} << 32 | bits[2]) >> 11;
  const double radius =
      std::sqrt(-2.0 * std::log((static_cast<double>(radius_bits) + 0.5) * 0x1p-53));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(angle_bits) * 0x1p-53;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

std::uint64_t RandomStream::below(std::uint64_t index, std::uint64_t bound) const {
  return multiply_high(word64(index), bound);
}

double RandomStream::normal(std::uint64_t index) const {
  return normal_pair(*this, index / 2)[index % 2];
}

void random_words(const RandomStream& stream, std::uint64_t first, std::span<std::uint32_t> out) {
  // One block serves four indices, sixteen apart.
  for (std::size_t done = 0; done < out.size(); ++done) {
    const std::uint64_t index = first + done;
    if (index % 64 >= 16 && done >= 16) continue;  // written with the block of an earlier index
    const auto words = stream.block(16 * (index / 64) + index % 16);
    for (std::uint64_t word = index % 64 / 16; word < 4; ++word) {
      const std::size_t at = done + 16 * (word - index % 64 / 16);
      if (at < out.size()) out[at] = words[word];
    }
  }
}

void random_normal(const RandomStream& stream, std::uint64_t first, double mean, double deviation,
                   std::span<float> out) {
  const auto scaled = [&](double normal) { return static_cast<float>(mean + deviation * normal); };
  std::size_t j = 0;
  if (first % 2 == 1 && !out.empty()) out[j++] = scaled(stream.normal(first));
  for (; j + 1 < out.size(); j += 2) {
    const std::array<double, 2> pair = normal_pair(stream, (first + j) / 2);
    out[j] = scaled(pair[0]);
    out[j + 1] = scaled(pair[1]);
  }
  if (j < out.size()) out[j] = scaled(stream.normal(first + j));
}

}  // namespace shardwright::kernels
