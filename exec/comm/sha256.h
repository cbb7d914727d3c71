// SPDX-License-Identifier: Apache-2.0
// SHA-256 and the message authentication code made of it (FIPS 180-4; RFC 2104): enough for ranks
// to prove to each other that they know the same secret. Nothing is encrypted with it.
//
// Own code because no library of this project has it and 60 lines are less than a dependency; the
// test holds it against the vectors of NIST and RFC 4231.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace shardwright::exec {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> message);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
/// Two digits a byte.
std::string hex_of(std::span<const std::byte> bytes);
/// Takes the same time wherever they differ.
bool same_digest(const Digest& a, std::span<const std::byte> b);

}  // namespace shardwright::exec
