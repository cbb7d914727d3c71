// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"

namespace shardwright::exec {

namespace {

[[noreturn]] void fail_errno(const std::string& name, const char* action, int error_number) {
  // The file is not to blame for a machine without memory for it.
  throw Error(fmt::format("{}: cannot {} this file: {}", name, action,
                          std::generic_category().message(error_number)),
              error_number == ENOMEM ? ExitCode::kFailed : ExitCode::kBadInput);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : name_(path.string()) {
  // Not to wait for the writer of a pipe.
  const int fd = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_errno(name_, "open", errno);
  struct stat status {};
  const int refused = ::fstat(fd, &status) != 0 ? errno : 0;
  const bool regular = refused == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* at = nullptr;
  int not_mapped = 0;
  if (regular && size > 0) {
    at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) not_mapped = errno;
  }
  const bool mapped = regular && not_mapped == 0;
  if (!mapped) ::close(fd);
  if (refused != 0) fail_errno(name_, "read", refused);
  if (!regular) throw Error(fmt::format("{}: not a regular file, expected data to map", name_));
  if (not_mapped != 0) fail_errno(name_, "map", not_mapped);
  fd_ = fd;
  bytes_ = {static_cast<const std::byte*>(at), size};
}

void MappedFile::require_whole() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_errno(name_, "read", errno);
  if (static_cast<std::size_t>(status.st_size) >= bytes_.size()) return;
  throw Error(fmt::format("{}: the file was cut from {} to {} bytes while it was in use, expected "
                          "data that stays as it is",
                          name_, bytes_.size(), status.st_size),
              ExitCode::kFailed);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWorthKeeping_bytes = std::size_t{64}
                                            << 20;  // takes longer to read than to look up
constexpr std::size_t kLeastPart_bytes = std::size_t{16} << 20;

std::uint32_t crc32_by_all(std::span<const std::byte> bytes) {
  const std::size_t parts = std::clamp<std::size_t>(
      bytes.size() / kLeastPart_bytes, 1, std::max(1u, std::thread::hardware_concurrency()));
  const auto part = [&](std::size_t i) {
    const std::size_t begin = bytes.size() * i / parts;
    return bytes.subspan(begin, bytes.size() * (i + 1) / parts - begin);
  };
  std::vector<std::uint32_t> sums(parts);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < parts; ++i)
      threads.emplace_back([&, i] { sums[i] = crc32(part(i)); });
    sums[0] = crc32(part(0));
  }
  for (std::size_t i = 1; i < parts; ++i) {
    sums[0] = static_cast<std::uint32_t>(
        ::crc32_combine(sums[0], sums[i], static_cast<z_off_t>(part(i).size())));
  }
  return sums[0];
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t so_far) {
  return static_cast<std::uint32_t>(
      ::crc32_z(so_far, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

std::uint32_t crc32(std::string_view text, std::uint32_t so_far) {
  return crc32(std::as_bytes(std::span(text)), so_far);
}

std::uint32_t crc32_of_file(const fs::path& path, const fs::path& cache) {
  const MappedFile file(path);
  struct stat status {};
  if (cache.empty() || file.bytes().size() < kWorthKeeping_bytes ||
      ::stat(path.c_str(), &status) != 0) {
    return crc32_by_all(file.bytes());
  }
  const std::string name = fs::absolute(path).lexically_normal().string();
  const std::string key = fmt::format(" of {} bytes, modified {}.{:09}: {}\n", status.st_size,
                                      status.st_mtim.tv_sec, status.st_mtim.tv_nsec, name);
  std::error_code ignored;
  fs::create_directories(cache, ignored);
  const fs::path place = cache / fmt::format("{:08x}", crc32(name));
  const int fd = ::open(place.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return crc32_by_all(file.bytes());
  const auto close = [](const int* open) { ::close(*open); };
  const std::unique_ptr<const int, decltype(close)> closer(&fd, close);
  ::flock(fd, LOCK_EX);
  constexpr std::size_t kSumDigits = 8;
  std::string text(kSumDigits + key.size() + 1, '\0');
  text.resize(
      static_cast<std::size_t>(std::max<ssize_t>(::pread(fd, text.data(), text.size(), 0), 0)));
  if (text.size() == kSumDigits + key.size() && text.ends_with(key) &&
      text.find_first_not_of("0123456789abcdef") == kSumDigits) {
    return static_cast<std::uint32_t>(std::stoul(text.substr(0, kSumDigits), nullptr, 16));
  }
  const std::uint32_t sum = crc32_by_all(file.bytes());
  text = fmt::format("{:08x}{}", sum, key);
  // Half of a text is that of no file, so a failure costs only time.
  static_cast<void>(::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) > 0);
  return sum;
}

}  // namespace shardwright::exec
