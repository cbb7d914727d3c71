// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright {

namespace {

namespace fs = std::filesystem;

constexpr mode_t kNewFileMode = 0666;  // the umask of the process applies

/// fsync that lets pass what has no disk behind it (pipes, some network file systems for folders).
bool flush(int fd) {
  while (::fsync(fd) != 0) {
    if (errno == EINTR) continue;
    return errno == EINVAL || errno == EROFS || errno == ENOTSUP;
  }
  return true;
}

const char* kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a link, which may lead anywhere";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISREG(mode)) return "a file";
  return "a device or socket";
}

constexpr int kReaderAttempts = 40;
constexpr int kReaderMilliseconds = 50;  // between them

}  // namespace

ExitCode exit_code_of(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
      return ExitCode::kBadInput;
    default:
      return ExitCode::kFailed;
  }
}

void refuse_foreign_link(const fs::path& path) {
  struct stat link {};
  if (::lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return;
  if (link.st_uid == ::geteuid() || link.st_uid == 0) return;
  throw Error(fmt::format("{}: is a link that another user made, expected none or one's own",
                          path.string()));
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  std::error_code unknown;
  return fs::equivalent(one, other, unknown) && !unknown;
}

void require_regular_or_none(const fs::path& path) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode)) return;
  throw Error(fmt::format("{}: is {}, expected a regular file or none there", path.string(),
                          kind_of(there.st_mode)));
}

void require_folder_or_none(const fs::path& path) {
  // With a slash at its end a link would be followed.
  const fs::path plain = path.has_filename() ? path : path.parent_path();
  struct stat there {};
  if (::lstat(plain.c_str(), &there) != 0 || S_ISDIR(there.st_mode)) return;
  throw Error(fmt::format("{}: is {}, expected a folder or none there", path.string(),
                          kind_of(there.st_mode)));
}

void flush_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // a folder may be writable without being readable
  const bool durable = flush(fd);
  const int error_number = errno;
  ::close(fd);
  if (!durable) {
    throw Error(fmt::format("{}: cannot flush this folder: {}", folder.string(),
                            std::generic_category().message(error_number)),
                exit_code_of(error_number));
  }
}

AtomicFile::AtomicFile(const fs::path& target, OutputPlace place)
    : target_(target), final_(target) {
  if (place == OutputPlace::kInFolder) {
    require_regular_or_none(target);
  } else {
    refuse_foreign_link(target);
  }
  std::error_code ignored;
  if (place == OutputPlace::kNamed && fs::is_symlink(target, ignored)) {
    fs::path followed = fs::weakly_canonical(target, ignored);
    if (!followed.empty()) final_ = std::move(followed);
  }
  struct stat existing {};
  const bool exists = ::stat(final_.c_str(), &existing) == 0;
  if (exists && S_ISDIR(existing.st_mode)) fail("write", EISDIR);
  if (exists && !S_ISREG(existing.st_mode)) {
    open_as_it_is(S_ISFIFO(existing.st_mode));
    return;
  }

  if (!final_.has_filename()) fail("write", EISDIR);
  // The process id keeps processes apart, the counter threads and what a crash left behind.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = final_.parent_path() /
                 fmt::format(".{}.{}-{}.tmp", final_.filename().string(), ::getpid(), attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kNewFileMode);
    if (fd_ < 0 && errno != EEXIST) {
      const int error_number = errno;
      temporary_.clear();
      fail("create", error_number);
    }
  }
  if (exists) {
    // A replaced file keeps its permissions; where that is refused the new file's own will do.
    [[maybe_unused]] const int refused = ::fchmod(fd_, existing.st_mode & 07777);
  }
}

void AtomicFile::open_as_it_is(bool pipe) {
  for (int attempt = 0;; ++attempt) {
    // Without a reader it is ENXIO instead of waiting for one.
    fd_ = ::open(final_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ >= 0 || !pipe || errno != ENXIO || attempt == kReaderAttempts) break;
    ::usleep(kReaderMilliseconds * 1000);
  }
  if (fd_ < 0 && pipe && errno == ENXIO) {
    throw Error(fmt::format("{}: is a pipe that nobody reads, expected a file", target_.string()));
  }
  if (fd_ < 0) fail("write", errno);
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
}

AtomicFile::~AtomicFile() {
  drop();
}

void AtomicFile::drop() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail(std::string_view action, int error_number) const {
  throw Error(fmt::format("{}: cannot {} this file: {}", target_.string(), action,
                          std::generic_category().message(error_number)),
              exit_code_of(error_number));
}

void AtomicFile::write(std::string_view bytes) {
  SHARDWRIGHT_CHECK(fd_ >= 0, "{} is written after commit", target_.string());
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // Linux stops a little below 2 GiB
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  SHARDWRIGHT_CHECK(fd_ >= 0, "{} is committed twice", target_.string());
  if (!flush(fd_)) fail("flush", errno);
  if (temporary_.empty()) return drop();
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) fail("replace", errno);
  temporary_.clear();
  drop();

  // The new name itself is durable only once the folder is. The content is whole either way.
  flush_folder(final_.has_parent_path() ? final_.parent_path() : fs::path("."));
}

void write_file_atomically(const fs::path& target, std::string_view content, OutputPlace place) {
  AtomicFile file(target, place);
  file.write(content);
  file.commit();
}

namespace fs = std::filesystem;

void make_durable_folder(const fs::path& folder) {
  const fs::path path = fs::absolute(folder);
  std::error_code problem;
  if (fs::is_directory(path, problem)) return;
  const fs::path parent = path.parent_path();
  if (parent != path) make_durable_folder(parent);
  fs::create_directory(path, problem);
  if (problem == std::errc::file_exists) problem = std::make_error_code(std::errc::not_a_directory);
  if (problem) {
    throw Error(fmt::format("{}: cannot make this folder: {}", folder.string(), problem.message()),
                exit_code_of(problem.value()));
  }
  flush_folder(parent);
}

}  // namespace shardwright
