// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"

#include <fcntl.h>
#include <stdlib.h>  // mkdtemp is POSIX
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::fuzz {
namespace {

std::vector<FuzzTarget>& registry() {
  static std::vector<FuzzTarget> targets;
  return targets;
}

/// In memory where that is to be had: targets that read files write one for every input.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = "/dev/shm/shardwright-fuzz-XXXXXX";
    if (::access("/dev/shm", W_OK) != 0) {
      name = (std::filesystem::temp_directory_path() / "shardwright-fuzz-XXXXXX").string();
    }
    SHARDWRIGHT_CHECK(::mkdtemp(name.data()) != nullptr, "no folder {}", name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
  return registry();
}

Registration::Registration(const FuzzTarget& target) {
  registry().push_back(target);
}

bool accepts(const FuzzTarget& target, std::string_view input) {
  try {
    target.parse(input);
    return true;
  } catch (const Error& error) {
    SHARDWRIGHT_CHECK(error.what()[0] != '\0', "no sentence");
    return false;
  }
}

const std::filesystem::path& scratch_folder() {
  static const ScratchFolder folder;
  return folder.path();
}

std::filesystem::path scratch_file(const std::string& name, std::string_view bytes) {
  const std::filesystem::path path = scratch_folder() / name;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  SHARDWRIGHT_CHECK(fd >= 0, "{}: errno {}", path.string(), errno);
  const ssize_t written = ::write(fd, bytes.data(), bytes.size());
  SHARDWRIGHT_CHECK(written == static_cast<ssize_t>(bytes.size()), "{}: errno {}", path.string(),
                    errno);
  ::close(fd);
  return path;
}

}  // namespace shardwright::fuzz
