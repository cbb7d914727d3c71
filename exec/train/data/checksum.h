// SPDX-License-Identifier: Apache-2.0
// CRC-32 (the polynomial of zlib and PNG), in pieces: what token files and checkpoints are checked
// by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace shardwright::exec {

/// The checksum of what `so_far` covers followed by `bytes`; begin with 0.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t so_far = 0);
std::uint32_t crc32(std::string_view text, std::uint32_t so_far = 0);

}  // namespace shardwright::exec
