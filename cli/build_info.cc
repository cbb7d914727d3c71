// SPDX-License-Identifier: Apache-2.0
#include "cli/build_info.h"

#include <algorithm>

#include "sim/core/base/parse_number.h"

namespace shardwright::cli {

bool BuildInfo::has_executor(const std::string& name) const {
  return std::find(executors.begin(), executors.end(), name) != executors.end();
}

int BuildInfo::cuda_major() const {
  for (const LibraryVersion& library : libraries) {
    if (library.name != "CUDA toolkit") continue;
    return static_cast<int>(
        parse_int64(library.version.substr(0, library.version.find('.'))).value_or(0));
  }
  return 0;
}

}  // namespace shardwright::cli
