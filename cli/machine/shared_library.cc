// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/shared_library.h"

#include <dlfcn.h>
#include <link.h>

namespace shardwright::cli {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names,
                             const std::vector<std::filesystem::path>& folders) {
  const auto open = [this](const std::string& name) {
    handle_ = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle_ != nullptr) return true;
    const char* said = dlerror();
    if (problem_.empty() && said != nullptr) problem_ = said;
    return false;
  };
  for (const std::string& name : names) {
    if (open(name)) return;
  }
  for (const std::filesystem::path& folder : folders) {
    for (const std::string& name : names) {
      std::error_code ignored;
      if (std::filesystem::exists(folder / name, ignored) && open((folder / name).string())) return;
    }
  }
}

std::string SharedLibrary::path() const {
  const link_map* map = nullptr;
  if (handle_ == nullptr || dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return {};
  return map->l_name;
}

std::string SharedLibrary::why_without(const std::string& part) const {
  const std::filesystem::path beside = std::filesystem::path(path()).replace_filename(part);
  if (dlopen(beside.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return {};
  std::string why = dlerror();
  return dlopen(part.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr ? std::string() : why;
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace shardwright::cli
