// SPDX-License-Identifier: Apache-2.0
// Small files of tests, whole.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/support/temp_folder.h"

namespace shardwright::testing {

inline std::string get(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// With the folders above it.
inline void put(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

/// A new file in the folder of this process, which goes with it; its path.
inline std::string written(const std::filesystem::path& name, std::string_view bytes) {
  const std::filesystem::path path = temp_folder() / name;
  put(path, bytes);
  return path.string();
}

}  // namespace shardwright::testing
