// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/private_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthers = 077;

struct Descriptor {
  int fd = -1;
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

/// What keeps a folder from being this user's alone; empty: nothing.
std::string open_to_others(const fs::path& folder) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return std::strerror(errno);
  if (!S_ISDIR(info.st_mode)) return "it is no folder";
  if (info.st_uid != ::geteuid()) return "it belongs to another user";
  if ((info.st_mode & kOthers) != 0) {
    return fmt::format("others may enter it, its mode is {:04o}", info.st_mode & 07777);
  }
  return {};
}

[[noreturn]] void fail(const fs::path& path) {
  throw Error(fmt::format("{}: cannot write this file: {}", path.string(), std::strerror(errno)),
              ExitCode::kFailed);
}

}  // namespace

fs::path private_folder(const Environment& environment) {
  if (const auto runtime = environment("XDG_RUNTIME_DIR")) {
    fs::path folder = *runtime;
    if (folder.is_absolute() && open_to_others(folder).empty()) return folder;
  }
  fs::path folder = fs::temp_directory_path() / fmt::format("shardwright-{}", ::geteuid());
  ::mkdir(folder.c_str(), 0700);  // it may be there
  const std::string why = open_to_others(folder);
  if (why.empty()) return folder;
  throw Error(
      fmt::format("{}: ranks cannot meet in this folder, {}; expected one of this user with "
                  "mode 0700: remove it, set TMPDIR, or give --rendezvous",
                  folder.string(), why));
}

void write_private_file(const fs::path& path, const std::string& text) {
  fs::path temporary;
  int fd = -1;
  for (int attempt = 0; fd < 0; ++attempt) {
    temporary = path.parent_path() /
                fmt::format(".{}.{}-{}.tmp", path.filename().string(), ::getpid(), attempt);
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) fail(path);
  }
  const Descriptor file(fd);
  const ssize_t written = ::write(fd, text.data(), text.size());
  const bool whole = written == static_cast<ssize_t>(text.size());
  if (written >= 0 && !whole) errno = ENOSPC;
  // The flush makes it visible where the folder is shared by machines.
  if (!whole || ::fsync(fd) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    errno = reason;
    fail(path);
  }
}

std::optional<std::string> read_private_file(const fs::path& path, std::size_t most_bytes,
                                             std::string& why) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) {
    why = errno == ELOOP ? "it is a link" : std::strerror(errno);
    return std::nullopt;
  }
  if (!S_ISREG(info.st_mode)) {
    why = "it is no regular file";
  } else if (info.st_uid != ::geteuid()) {
    why = "it belongs to another user";
  } else if ((info.st_mode & kOthers) != 0) {
    why = fmt::format("others may read it, its mode is {:04o}", info.st_mode & 07777);
  } else if (static_cast<std::size_t>(info.st_size) > most_bytes) {
    why = fmt::format("it holds more than {} bytes", most_bytes);
  } else {
    std::string text(static_cast<std::size_t>(info.st_size), '\0');
    const ssize_t count = ::read(file.fd, text.data(), text.size());
    if (count == info.st_size) return text;
    why = count < 0 ? std::strerror(errno) : "it was cut short";
  }
  return std::nullopt;
}

}  // namespace shardwright::exec
