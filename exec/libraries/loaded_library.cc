// SPDX-License-Identifier: Apache-2.0
#include "exec/libraries/loaded_library.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <filesystem>

#include "sim/core/base/error.h"

namespace shardwright::exec::libraries {

void* LoadedLibrary::symbol(const char* name) {
  std::call_once(once_, [this] {
    handle_ = dlopen(file_, RTLD_LAZY | RTLD_LOCAL);
    if (handle_ == nullptr) {
      problem_ = dlerror();
      handle_ = dlopen(fmt::format("{}/{}", folder_, file_).c_str(), RTLD_LAZY | RTLD_LOCAL);
    }
    if (handle_ == nullptr || part_ == nullptr) return;
    problem_ = why_without(handle_, part_);
    if (!problem_.empty()) handle_ = nullptr;
  });
  if (handle_ == nullptr) {
    throw Error(fmt::format("{} cannot be loaded: {}; expected it in a folder of the system or of "
                            "LD_LIBRARY_PATH.",
                            title_, problem_),
                ExitCode::kMissingDevice);
  }
  void* const found = dlsym(handle_, name);
  if (found == nullptr) {
    throw Error(
        fmt::format("{} has no function {}, expected a newer release of {}.", file_, name, title_),
        ExitCode::kMissingDevice);
  }
  return found;
}

std::string why_without(void* library, const std::string& part) {
  const link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  const std::filesystem::path beside = std::filesystem::path(map->l_name).replace_filename(part);
  if (dlopen(beside.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return {};
  std::string why = dlerror();
  return dlopen(part.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr ? std::string() : why;
}

}  // namespace shardwright::exec::libraries
