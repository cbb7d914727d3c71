// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/sha256.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace shardwright::exec {
namespace {

constexpr std::size_t kBlockBytes = 64;
using State = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(std::span<const std::byte> four) {
  std::uint32_t value = 0;
  for (const std::byte byte : four) value = (value << 8) | std::to_integer<std::uint32_t>(byte);
  return value;
}

void take_block(State& state, std::span<const std::byte> block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(block.subspan(4 * i, 4));
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State added{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

Digest sha256(std::span<const std::byte> message) {
  // The first 32 bits of the fractional parts of the square roots of the first 8 primes.
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  // A one, zeros and the length in bits fill the last block.
  std::vector<std::byte> padded(message.begin(), message.end());
  padded.push_back(std::byte{0x80});
  while (padded.size() % kBlockBytes != kBlockBytes - 8) padded.push_back(std::byte{0});
  const std::uint64_t bits = std::uint64_t{message.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded.push_back(static_cast<std::byte>((bits >> shift) & 0xff));
  }
  for (std::size_t at = 0; at < padded.size(); at += kBlockBytes) {
    take_block(state, std::span(padded).subspan(at, kBlockBytes));
  }
  Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>((state[i / 4] >> (24 - 8 * (i % 4))) & 0xff);
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  std::vector<std::byte> inner(kBlockBytes), outer(kBlockBytes);
  const Digest short_key = key.size() > kBlockBytes ? sha256(key) : Digest{};
  if (key.size() > kBlockBytes) key = short_key;
  std::copy(key.begin(), key.end(), inner.begin());
  std::copy(key.begin(), key.end(), outer.begin());
  for (std::byte& byte : inner) byte ^= std::byte{0x36};
  for (std::byte& byte : outer) byte ^= std::byte{0x5c};
  inner.insert(inner.end(), message.begin(), message.end());
  const Digest first = sha256(inner);
  outer.insert(outer.end(), first.begin(), first.end());
  return sha256(outer);
}

bool same_digest(const Digest& a, std::span<const std::byte> b) {
  if (b.size() != a.size()) return false;
  auto different = std::byte{0};
  for (std::size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == std::byte{0};
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string digits;
  for (const std::byte byte : bytes) digits += fmt::format("{:02x}", std::to_integer<int>(byte));
  return digits;
}

}  // namespace shardwright::exec
