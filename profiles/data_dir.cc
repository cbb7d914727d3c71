// SPDX-License-Identifier: Apache-2.0
#include "profiles/data_dir.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "sim/core/base/error.h"

namespace shardwright::profiles {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

fs::path installed_data_dir() {
  std::error_code failed;
  const fs::path executable = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  return (executable.parent_path() / "../share/shardwright/profiles").lexically_normal();
}

fs::path shipped_folder;  // empty where the program is no library

}  // namespace

bool is_trusted_folder(const fs::path& path) {
  struct stat folder {
  }, program{};
  if (::stat(path.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode)) return false;
  if (folder.st_uid == 0 || folder.st_uid == ::geteuid()) return true;
  return ::stat("/proc/self/exe", &program) == 0 && folder.st_uid == program.st_uid;
}

void set_shipped_data_dir(fs::path folder) {
  shipped_folder = std::move(folder);
}

fs::path data_dir() {
  if (const char* chosen = std::getenv("SHARDWRIGHT_DATA"); chosen != nullptr && *chosen != '\0') {
    if (is_folder(chosen)) return chosen;
    throw Error(
        fmt::format("SHARDWRIGHT_DATA is '{}', but there is no such folder; unset it to use the "
                    "data that shipped with this program.",
                    chosen));
  }
  if (!shipped_folder.empty() && is_folder(shipped_folder)) return shipped_folder;
  const fs::path installed = installed_data_dir();
  if (is_trusted_folder(installed)) return fs::canonical(installed);
#ifdef SHARDWRIGHT_SOURCE_DATA_DIR
  if (is_folder(SHARDWRIGHT_SOURCE_DATA_DIR)) return SHARDWRIGHT_SOURCE_DATA_DIR;
#endif
#ifdef SHARDWRIGHT_INSTALLED_DATA_DIR
  if (is_trusted_folder(SHARDWRIGHT_INSTALLED_DATA_DIR)) return SHARDWRIGHT_INSTALLED_DATA_DIR;
#endif
  throw Error(fmt::format("there is no data folder '{}' of this program; install the program "
                          "(cmake --install), or set "
                          "SHARDWRIGHT_DATA to the profiles/data folder of the source tree.",
                          installed.string()),
              ExitCode::kFailed);
}

}  // namespace shardwright::profiles
