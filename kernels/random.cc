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

}  // namespace

std::uint64_t RandomStream::below(std::uint64_t index, std::uint64_t bound) const {
  return multiply_high(word64(index), bound);
}

double RandomStream::normal(std::uint64_t index) const {
  const auto bits = block(index / 2);
  // 53 bits for the radius, shifted away from 0 so that the logarithm is finite.
  const std::uint64_t radius_bits = (std::uint64_t{bits[1]} << 32 | bits[0]) >> 11;
  const std::uint64_t angle_bits = (std::uint64_t{bits[3]} << 32 | bits[2]) >> 11;
  const double radius =
      std::sqrt(-2.0 * std::log((static_cast<double>(radius_bits) + 0.5) * 0x1p-53));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(angle_bits) * 0x1p-53;
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
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
  for (std::size_t j = 0; j < out.size(); ++j) {
    out[j] = static_cast<float>(mean + deviation * stream.normal(first + j));
  }
}

}  // namespace shardwright::kernels
