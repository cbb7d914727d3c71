// SPDX-License-Identifier: Apache-2.0
// A file in memory without reading it: the bytes of a corpus that may be larger than memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

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

}  // namespace shardwright::exec
