#include "profiles/import/byte_stream.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sim/core/error.h"

namespace shardwright::profiles {

struct ByteStream::Handle {
  gzFile file = nullptr;
  ~Handle() {
    if (file != nullptr) gzclose(file);
  }
};

ByteStream::ByteStream(const std::filesystem::path& path) : handle_(std::make_unique<Handle>()) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(
        fmt::format("{} is a folder, expected the file of a trace or a log.", path.string()));
  }
  errno = 0;
  handle_->file = gzopen(path.c_str(), "rb");
  if (handle_->file == nullptr) {
    throw Error(fmt::format("{} cannot be read: {}.", path.string(),
                            errno != 0 ? std::strerror(errno) : "out of memory"));
  }
  gzbuffer(handle_->file, 1U << 18);
}

ByteStream::~ByteStream() = default;

std::size_t ByteStream::read(char* to, std::size_t size) {
  if (damaged_) return 0;
  const int count =
      gzread(handle_->file, to, static_cast<unsigned>(std::min<std::size_t>(size, 1U << 30)));
  int status = Z_OK;
  if (count < static_cast<int>(size)) gzerror(handle_->file, &status);
  damaged_ = status != Z_OK && status != Z_STREAM_END;
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

}  // namespace shardwright::profiles
