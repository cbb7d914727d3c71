// SPDX-License-Identifier: Apache-2.0
#include "exec/libraries/loaded_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "sim/core/error.h"

namespace shardwright::exec::libraries {

void* LoadedLibrary::symbol(const char* name) {
  std::call_once(once_, [this] {
    handle_ = dlopen(file_, RTLD_LAZY | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    problem_ = dlerror();
    handle_ = dlopen(fmt::format("{}/{}", folder_, file_).c_str(), RTLD_LAZY | RTLD_LOCAL);
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

}  // namespace shardwright::exec::libraries
