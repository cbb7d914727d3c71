// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program (LD_PRELOAD), lets the n-th of its file calls fail, or lets the power
// go.
//
//   FAULT_FOLDER   only files under this folder count
//   FAULT_AT       the call that fails, from 1 on; 0: none, all are written to FAULT_LOG
//   FAULT_ERRNO    how (5: EIO, 28: ENOSPC, 30: EROFS)
//   FAULT_STICKY   set: all calls from FAULT_AT on
//   FAULT_ONLY     names of the calls that count, separated by spaces; unset: all
//   FAULT_READS    set: opening to read and reading count, too
//   FAULT_SHORT    set: every write takes half of what it is given, if that is more than a byte
//   FAULT_LOST     set: what was not flushed before its file, or the folder that it lies in, is
//   renamed
//                  is lost, as it may be when the power goes
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace {

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Settings {
  const char* folder = std::getenv("FAULT_FOLDER");
  const char* only = std::getenv("FAULT_ONLY");
  const char* log = std::getenv("FAULT_LOG");
  long at = std::getenv("FAULT_AT") != nullptr ? std::atol(std::getenv("FAULT_AT")) : -1;
  int error_number =
      std::getenv("FAULT_ERRNO") != nullptr ? std::atoi(std::getenv("FAULT_ERRNO")) : EIO;
  bool sticky = std::getenv("FAULT_STICKY") != nullptr;
  bool halves = std::getenv("FAULT_SHORT") != nullptr;
  bool reads = std::getenv("FAULT_READS") != nullptr;
  bool loses = std::getenv("FAULT_LOST") != nullptr;
};

const Settings& settings() {
  static const Settings all;
  return all;
}

bool counts(const char* path) {
  return settings().folder != nullptr && path != nullptr &&
         std::strncmp(path, settings().folder, std::strlen(settings().folder)) == 0;
}

std::string path_of(int fd) {
  std::array<char, 64> link{};
  std::array<char, 4096> path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link.data(), path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

bool fails(const char* call, const std::string& path) {
  static std::atomic<long> calls{0};
  const Settings& set = settings();
  if (!counts(path.c_str())) return false;
  if (set.only != nullptr && std::strstr(set.only, call) == nullptr) return false;
  const long number = ++calls;
  const bool bad = set.at > 0 && (number == set.at || (set.sticky && number > set.at));
  if (set.log != nullptr && (bad || set.at == 0)) {
    const std::string line = std::to_string(number) + " " + call + " " + path + "\n";
    static const auto open_next = next<int(const char*, int, ...)>("open");
    static const auto write_next = next<ssize_t(int, const void*, std::size_t)>("write");
    const int log = open_next(set.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    [[maybe_unused]] const ssize_t written = write_next(log, line.data(), line.size());
    close(log);
  }
  if (bad) errno = set.error_number;
  return bad;
}

using Inode = std::pair<dev_t, ino_t>;
std::mutex mutex;
std::set<Inode>& unflushed() {
  static auto* all = new std::set<Inode>();  // lives as long as threads that write
  return *all;
}

void note_write(int fd, bool flushed) {
  struct stat info {};
  if (!settings().loses || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return;
  const std::lock_guard lock(mutex);
  if (flushed) {
    unflushed().erase({info.st_dev, info.st_ino});
  } else {
    unflushed().insert({info.st_dev, info.st_ino});
  }
}

/// Empties the file, or the files of the folder, that were not flushed.
void lose(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return;
  if (S_ISDIR(info.st_mode)) {
    DIR* folder = opendir(path.c_str());
    while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") lose(path + "/" + name);
    }
    if (folder != nullptr) closedir(folder);
    return;
  }
  const std::lock_guard lock(mutex);
  if (S_ISREG(info.st_mode) && unflushed().contains({info.st_dev, info.st_ino})) {
    [[maybe_unused]] const int done = truncate(path.c_str(), 0);
  }
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  const std::string path = fd > 2 && settings().folder != nullptr ? path_of(fd) : std::string();
  if (fails("write", path)) return -1;
  if (!counts(path.c_str())) return real(fd, bytes, size);
  note_write(fd, false);
  return real(fd, bytes, settings().halves && size > 1 ? size / 2 : size);
}

ssize_t read(int fd, void* bytes, size_t size) {
  static const auto real = next<ssize_t(int, void*, size_t)>("read");
  return settings().reads && fd > 2 && fails("read", path_of(fd)) ? -1 : real(fd, bytes, size);
}

int fsync(int fd) {
  static const auto real = next<int(int)>("fsync");
  if (fails("fsync", path_of(fd))) return -1;
  note_write(fd, true);
  return real(fd);
}

int ftruncate(int fd, off_t size) {
  static const auto real = next<int(int, off_t)>("ftruncate");
  return fails("ftruncate", path_of(fd)) ? -1 : real(fd, size);
}

int fchmod(int fd, mode_t mode) {
  static const auto real = next<int(int, mode_t)>("fchmod");
  return fails("fchmod", path_of(fd)) ? -1 : real(fd, mode);
}

int rename(const char* from, const char* to) {
  static const auto real = next<int(const char*, const char*)>("rename");
  if (fails("rename", to)) return -1;
  if (settings().loses && counts(from)) lose(from);
  return real(from, to);
}

int open(const char* path, int flags, ...) {
  static const auto real = next<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  const bool writes = (flags & (O_WRONLY | O_RDWR)) != 0;
  return (writes || settings().reads) && fails("open", path) ? -1 : real(path, flags, mode);
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = next<int(const char*, mode_t)>("mkdir");
  return fails("mkdir", path) ? -1 : real(path, mode);
}

int unlink(const char* path) {
  static const auto real = next<int(const char*)>("unlink");
  return fails("unlink", path) ? -1 : real(path);
}

int unlinkat(int folder, const char* path, int flags) {
  static const auto real = next<int(int, const char*, int)>("unlinkat");
  const std::string whole = path[0] == '/' ? path : path_of(folder) + "/" + path;
  return fails("unlink", whole) ? -1 : real(folder, path, flags);
}

}  // extern "C"
