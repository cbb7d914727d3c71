// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/program_path.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace shardwright::cli {

std::filesystem::path program_path(const std::string& name) {
  const char* value = std::getenv("PATH");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    std::filesystem::path path = std::filesystem::path(rest.substr(0, colon)) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0)
      return path;
    rest = colon == std::string_view::npos ? std::string_view{} : rest.substr(colon + 1);
  }
  return {};
}

}  // namespace shardwright::cli
