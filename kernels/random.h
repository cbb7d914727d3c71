// SPDX-License-Identifier: Apache-2.0
// Random numbers without state: every draw is a pure function of where it is used.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11) turns a
// 128-bit counter and a 64-bit key into 128 random bits. Here the key is the run's seed and the
// counter is (block, step, site), so a draw depends neither on how many ranks or threads there are
// nor on the order in which they draw, and nothing needs to be saved in a checkpoint.
//
// The sequence, fixed for good because resumed runs depend on it: counter words are
// {block low, block high, step, site}, key words {seed low, seed high}. random_word(i) reads word
// (i % 64) / 16 of block 16 * (i / 64) + i % 16: sixteen neighbouring blocks serve 64 neighbouring
// indices, which lets vector units compute them side by side.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace shardwright::kernels {

/// What draws are for. Draws of different sites never coincide.
enum class RandomSite : std::uint32_t {
  kInit = 1,            // initial weights
  kShuffle = 2,         // order of the data
  kSynthetic = 3,       // synthetic tokens
  kRoundMoments = 4,    // stochastic rounding of AdamW's moments
  kRoundParameter = 5,  // stochastic rounding of bf16 master weights
  kDelay = 6            // injected delays of the shuffled stream mode
};

/// The Philox4x32-10 bijection.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A stream of draws: one seed, one site, one step.
struct RandomStream {
  std::uint64_t seed = 0;
  RandomSite site = RandomSite::kInit;
  std::uint32_t step = 0;

  constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), step,
                   static_cast<std::uint32_t>(site)},
                  {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  }
  /// 32 random bits for `index`.
  constexpr std::uint32_t word(std::uint64_t index) const {
    return block(16 * (index / 64) + index % 16)[index % 64 / 16];
  }
  /// 64 random bits for `index`: the first two words of block `index`.
  constexpr std::uint64_t word64(std::uint64_t index) const {
    const auto bits = block(index);
    return std::uint64_t{bits[1]} << 32 | bits[0];
  }
  /// Uniform in [0, 1) with 24 bits, for `index`.
  constexpr float uniform(std::uint64_t index) const {
    return static_cast<float>(word(index) >> 8) * 0x1p-24f;
  }
  /// Uniform in [0, bound) from word64; the bias is below bound / 2^64. `bound` is positive.
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;
  /// Standard normal by Box and Muller: indices 2j and 2j + 1 are the pair made from block j.
  double normal(std::uint64_t index) const;
};

/// out[j] = stream.word(first + j).
void random_words(const RandomStream& stream, std::uint64_t first, std::span<std::uint32_t> out);

/// out[j] = mean + deviation * stream.normal(first + j), rounded to fp32: initial weights, which do
/// not depend on how parameters are split over ranks when `first` is the global index.
void random_normal(const RandomStream& stream, std::uint64_t first, double mean, double deviation,
                   std::span<float> out);

}  // namespace shardwright::kernels
