// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

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

}  // namespace shardwright::exec
