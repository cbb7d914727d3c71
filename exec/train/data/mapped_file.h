// SPDX-License-Identifier: Apache-2.0
// A file in memory without reading it: the bytes of a corpus that may be larger than memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace shardwright::exec {

class MappedFile {
 public:
  /// Maps a regular file for reading. Throws Error naming it when that is not possible.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  /// All bytes. Valid while this object lives and nobody shortens the file.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Throws Error when the file has been shortened since it was mapped: reading what is gone would
  /// end the process without a word. Ask before each use of bytes() that may be long after.
  void require_whole() const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  int fd_ = -1;
  std::span<const std::byte> bytes_;
};

// CRC-32 (the polynomial of zlib and PNG), in pieces: what token files, checkpoints and training
// data are checked by.

/// The checksum of what `so_far` covers followed by `bytes`; begin with 0.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t so_far = 0);
std::uint32_t crc32(std::string_view text, std::uint32_t so_far = 0);

/// Of a whole file, by all processors. Of a large one it is kept in the folder `cache` (empty:
/// nowhere) and believed while the file's size and time of modification are those; of processes
/// that ask at once one reads the file. Throws Error where that cannot be read.
std::uint32_t crc32_of_file(const std::filesystem::path& path, const std::filesystem::path& cache);

}  // namespace shardwright::exec
