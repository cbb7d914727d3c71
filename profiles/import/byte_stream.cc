// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef SHARDWRIGHT_HAS_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"

namespace shardwright::profiles {

namespace {

void refuse_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(
        fmt::format("{} is a folder, expected the file of a trace or a log.", path.string()));
  }
}

[[noreturn]] void fail_to_open(const std::filesystem::path& path) {
  throw Error(fmt::format("{} cannot be read: {}.", path.string(),
                          errno != 0 ? std::strerror(errno) : "out of memory"));
}

#ifdef SHARDWRIGHT_HAS_ZLIB
/// For small files less than for large ones.
unsigned buffer_bytes(int fd) {
  constexpr off_t kLeastBuffer = 1 << 13, kMostBuffer = 1 << 18;
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return kMostBuffer;
  return static_cast<unsigned>(std::clamp(info.st_size, kLeastBuffer, kMostBuffer));
}
#endif

constexpr int kWriterMilliseconds = 2000;

/// A pipe that a stranger's folder holds may have no writer ever: it is then empty instead of
/// waited for. With one, reading waits as usual.
int open_without_waiting(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_to_open(path);
  try {
    require_readable(path, fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  pollfd waiting{fd, POLLIN, 0};
  ::poll(&waiting, 1, kWriterMilliseconds);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  errno = 0;
  return fd;
}

}  // namespace

#ifdef SHARDWRIGHT_HAS_ZLIB

struct ByteStream::Handle {
  gzFile file = nullptr;
  ~Handle() {
    if (file != nullptr) gzclose(file);
  }
};

ByteStream::ByteStream(const std::filesystem::path& path) : handle_(std::make_unique<Handle>()) {
  refuse_folder(path);
  errno = 0;
  const int fd = open_without_waiting(path);
  handle_->file = gzdopen(fd, "rb");
  if (handle_->file == nullptr) {
    ::close(fd);
    fail_to_open(path);
  }
  gzbuffer(handle_->file, buffer_bytes(fd));
}

std::size_t ByteStream::read(char* to, std::size_t size) {
  if (damaged_) return 0;
  const int count =
      gzread(handle_->file, to, static_cast<unsigned>(std::min<std::size_t>(size, 1U << 30)));
  int status = Z_OK;
  if (count < static_cast<int>(size)) gzerror(handle_->file, &status);
  damaged_ = status != Z_OK && status != Z_STREAM_END;
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

#else

struct ByteStream::Handle {
  std::FILE* file = nullptr;
  std::string begin;  // what was read to know the format and not given yet; a pipe has no way back
  ~Handle() {
    if (file != nullptr) std::fclose(file);
  }
};

ByteStream::ByteStream(const std::filesystem::path& path) : handle_(std::make_unique<Handle>()) {
  refuse_folder(path);
  errno = 0;
  const int fd = open_without_waiting(path);
  handle_->file = ::fdopen(fd, "rb");
  if (handle_->file == nullptr) {
    ::close(fd);
    fail_to_open(path);
  }
  std::string& begin = handle_->begin;
  begin.resize(2);
  begin.resize(std::fread(begin.data(), 1, begin.size(), handle_->file));
  if (begin == "\x1f\x8b") {
    throw Error(fmt::format(
        "{} is packed with gzip, which this build cannot read; unpack it with gunzip first",
        path.string()));
  }
}

std::size_t ByteStream::read(char* to, std::size_t size) {
  if (damaged_) return 0;
  if (!handle_->begin.empty()) {
    const std::size_t given = handle_->begin.copy(to, size);
    handle_->begin.erase(0, given);
    return given;
  }
  const std::size_t count = std::fread(to, 1, size, handle_->file);
  damaged_ = std::ferror(handle_->file) != 0;
  return count;
}

#endif

ByteStream::~ByteStream() = default;

std::string read_unpacked(const std::filesystem::path& path, std::size_t most_bytes,
                          std::string_view kind) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  ByteStream stream(path);
  std::string text;
  for (;;) {
    const std::size_t size = text.size();
    text.resize(size + kPiece);
    const std::size_t got = stream.read(text.data() + size, kPiece);
    text.resize(size + got);
    if (text.size() > most_bytes) {
      throw Error(fmt::format("{}: holds more than {} bytes, the most accepted for {}",
                              path.string(), most_bytes, kind));
    }
    if (got > 0) continue;
    if (!stream.damaged()) return text;
    throw Error(fmt::format("{}: is damaged or ends early, expected a whole file packed with gzip",
                            path.string()));
  }
}

}  // namespace shardwright::profiles
