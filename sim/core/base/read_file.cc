// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/read_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "sim/core/base/error.h"

namespace shardwright {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::vector<std::filesystem::path>& allowed_folders() {
  static std::vector<std::filesystem::path> folders;
  return folders;
}

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error_number) {
  throw Error(fmt::format("{}: cannot read this file: {}", path.string(),
                          std::generic_category().message(error_number)));
}

constexpr int kWriterMilliseconds = 2000;

/// Of a pipe: throws Error when nobody has it open for writing, also after a moment, and lets reads
/// wait for data from now on.
void await_writer(const FileDescriptor& pipe, const std::filesystem::path& path) {
  pollfd waiting{pipe.get(), POLLIN, 0};
  // A pipe that no writer has opened yet is not ready; one whose writer has gone is.
  const bool ready = ::poll(&waiting, 1, kWriterMilliseconds) > 0;
  std::array<char, 1> none{};
  if (!ready && ::read(pipe.get(), none.data(), none.size()) == 0) {
    throw Error(fmt::format("{}: is a pipe that nobody writes to, expected a file", path.string()));
  }
  ::fcntl(pipe.get(), F_SETFL, ::fcntl(pipe.get(), F_GETFL) & ~O_NONBLOCK);
}

}  // namespace

void restrict_reading(const std::vector<std::filesystem::path>& folders) {
  allowed_folders().clear();
  for (const std::filesystem::path& folder : folders)
    allowed_folders().push_back(
        std::filesystem::weakly_canonical(std::filesystem::absolute(folder)));
}

void require_readable(const std::filesystem::path& path, int fd) {
  if (allowed_folders().empty()) return;
  // Of an opened file where it lies, so that nobody can change a link in between.
  std::error_code failed;
  const std::filesystem::path place =
      fd < 0 ? std::filesystem::weakly_canonical(std::filesystem::absolute(path), failed)
             : std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), failed);
  const bool allowed =
      !failed &&
      std::any_of(
          allowed_folders().begin(), allowed_folders().end(),
          [&](const std::filesystem::path& folder) {
            return std::mismatch(folder.begin(), folder.end(), place.begin(), place.end()).first ==
                   folder.end();
          });
  if (allowed) return;
  throw Error(fmt::format("{}: may not be read, expected a file below {}", path.string(),
                          allowed_folders().front().string()));
}

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  require_readable(path, -1);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_to_read(path, errno);
  require_readable(path, file.get());
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail_to_read(path, errno);
  if (S_ISDIR(info.st_mode)) {
    throw Error(fmt::format("{}: is a folder, expected a file", path.string()));
  }

  if (S_ISFIFO(info.st_mode)) await_writer(file, path);

  const auto too_large = [&] {
    return Error(
        fmt::format("{}: is larger than {} bytes, the most accepted for a file of this kind",
                    path.string(), max_bytes));
  };
  const auto listed_size = static_cast<std::size_t>(std::max<off_t>(info.st_size, 0));
  if (S_ISREG(info.st_mode) && listed_size > max_bytes) throw too_large();

  std::string content;
  std::size_t used = 0;
  content.resize(std::min(listed_size, max_bytes) + 1);
  while (true) {
    if (used == content.size()) content.resize(std::max<std::size_t>(2 * used, 1 << 16));
    const ssize_t count = ::read(file.get(), content.data() + used, content.size() - used);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_read(path, errno);
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
    if (used > max_bytes) throw too_large();
  }
  content.resize(used);
  return content;
}

}  // namespace shardwright
