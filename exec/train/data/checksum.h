// SPDX-License-Identifier: Apache-2.0
// CRC-32 (the polynomial of zlib and PNG), in pieces: what token files, checkpoints and training
// data are checked by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace shardwright::exec {

/// The checksum of what `so_far` covers followed by `bytes`; begin with 0.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t so_far = 0);
std::uint32_t crc32(std::string_view text, std::uint32_t so_far = 0);

/// Of a whole file, by all processors. Of a large one it is kept in the folder `cache` (empty:
/// nowhere) and believed while the file's size and time of modification are those; of processes
/// that ask at once one reads the file. Throws Error where that cannot be read.
std::uint32_t crc32_of_file(const std::filesystem::path& path, const std::filesystem::path& cache);

}  // namespace shardwright::exec
