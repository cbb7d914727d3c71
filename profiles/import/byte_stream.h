// SPDX-License-Identifier: Apache-2.0
// A file as a stream of bytes, gzip or plain, in bounded memory.
//
// A compressed file that ends early or is damaged gives what could be read and says so: a profiler
// that was killed leaves such files, and what stands before the damage is good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace shardwright::profiles {

class ByteStream {
 public:
  /// Throws Error when `path` cannot be opened for reading or is a folder.
  explicit ByteStream(const std::filesystem::path& path);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// Up to `size` uncompressed bytes into `to`; 0 at the end or where the file is damaged.
  std::size_t read(char* to, std::size_t size);

  /// Compressed data ended early or did not decompress.
  bool damaged() const { return damaged_; }

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
  bool damaged_ = false;
};

/// All bytes of `path`, unpacked. Throws Error where they are more than `most_bytes`; `kind` says
/// of what, as in "a log of nccl-tests".
std::string read_unpacked(const std::filesystem::path& path, std::size_t most_bytes,
                          std::string_view kind);

}  // namespace shardwright::profiles
