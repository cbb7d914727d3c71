// SPDX-License-Identifier: Apache-2.0
#include "profiles/data_dir.h"

#include <fmt/core.h>

#include <cstdlib>
#include <utility>

#include "sim/core/error.h"

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

fs::path shipped;  // empty where the program is no library

}  // namespace

void set_shipped_data_dir(fs::path folder) {
  shipped = std::move(folder);
}

fs::path data_dir() {
  if (const char* chosen = std::getenv("SHARDWRIGHT_DATA"); chosen != nullptr && *chosen != '\0') {
    if (is_folder(chosen)) return chosen;
    throw Error(
        fmt::format("SHARDWRIGHT_DATA is '{}', but there is no such folder; unset it to use the "
                    "data that shipped with this program.",
                    chosen));
  }
  if (!shipped.empty() && is_folder(shipped)) return shipped;
  fs::path installed = installed_data_dir();
  if (is_folder(installed)) return installed;
  fs::path source{SHARDWRIGHT_SOURCE_DATA_DIR};
  if (is_folder(source)) return source;
#ifdef SHARDWRIGHT_INSTALLED_DATA_DIR
  if (is_folder(SHARDWRIGHT_INSTALLED_DATA_DIR)) return SHARDWRIGHT_INSTALLED_DATA_DIR;
#endif
  throw Error(
      fmt::format(
          "the data folder is neither '{}' nor '{}'; set SHARDWRIGHT_DATA to the profiles/data "
          "folder of the source tree.",
          installed.string(), source.string()),
      ExitCode::kFailed);
}

}  // namespace shardwright::profiles
