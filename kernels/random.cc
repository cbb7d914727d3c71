#include "kernels/random.h"

#include <algorithm>
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

/// The 64 words of group `group`: sixteen counters side by side, so that the compiler can
/// vectorise.
void fill_group(const RandomStream& stream, std::uint64_t group, std::uint32_t* out) {
  std::uint32_t c0[16], c1[16], c2[16], c3[16];
  std::uint32_t k0 = static_cast<std::uint32_t>(stream.seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(stream.seed >> 32);
  for (std::uint64_t lane = 0; lane < 16; ++lane) {
    const std::uint64_t block = 16 * group + lane;
    c0[lane] = static_cast<std::uint32_t>(block);
    c1[lane] = static_cast<std::uint32_t>(block >> 32);
    c2[lane] = stream.step;
    c3[lane] = static_cast<std::uint32_t>(stream.site);
  }
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < 16; ++lane) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0[lane];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c2[lane];
      c0[lane] = static_cast<std::uint32_t>(b >> 32) ^ c1[lane] ^ k0;
      c1[lane] = static_cast<std::uint32_t>(b);
      c2[lane] = static_cast<std::uint32_t>(a >> 32) ^ c3[lane] ^ k1;
      c3[lane] = static_cast<std::uint32_t>(a);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int lane = 0; lane < 16; ++lane) {
    out[lane] = c0[lane];
    out[16 + lane] = c1[lane];
    out[32 + lane] = c2[lane];
    out[48 + lane] = c3[lane];
  }
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
  std::size_t done = 0;
  std::uint32_t group[64];
  while (done < out.size()) {
    const std::uint64_t index = first + done;
    const std::size_t skip = index % 64;
    const std::size_t count = std::min<std::size_t>(64 - skip, out.size() - done);
    if (count == 64) {
      fill_group(stream, index / 64, out.data() + done);
    } else {
      fill_group(stream, index / 64, group);
      for (std::size_t j = 0; j < count; ++j) out[done + j] = group[skip + j];
    }
    done += count;
  }
}

void random_normal(const RandomStream& stream, std::uint64_t first, double mean, double deviation,
                   std::span<float> out) {
  for (std::size_t j = 0; j < out.size(); ++j) {
    out[j] = static_cast<float>(mean + deviation * stream.normal(first + j));
  }
}

}  // namespace shardwright::kernels
