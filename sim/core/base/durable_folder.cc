// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/durable_folder.h"

#include <fmt/core.h>

#include <system_error>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"

namespace shardwright {

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
