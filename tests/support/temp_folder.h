// SPDX-License-Identifier: Apache-2.0
// A folder for the files of one test process, so that tests may run at the same time.
#pragma once

#include <stdlib.h>  // mkdtemp is POSIX

#include <filesystem>
#include <string>
#include <system_error>

#include "sim/core/base/check.h"

namespace shardwright::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "shardwright-tests-XXXXXX").string();
    SHARDWRIGHT_CHECK(::mkdtemp(name.data()) != nullptr, "no folder {}", name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The folder of this process; it goes when the process ends.
inline const std::filesystem::path& temp_folder() {
  static const TempFolder folder;
  return folder.path();
}

inline std::string temp_path(const std::string& name) {
  return (temp_folder() / name).string();
}

}  // namespace shardwright::testing
