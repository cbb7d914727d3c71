// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

#include <fmt/core.h>

#include "cli/build_info.h"

namespace shardwright::cli {

std::string version_text() {
  const BuildInfo build = build_info();
  std::string text =
      fmt::format("shardwright {}\n{}, {}{}", build.version, build.compiler, build.build_type,
                  build.sanitizers.empty() ? "" : ", sanitizers: ");
  text += build.sanitizers + "\n";
  for (const LibraryVersion& library : build.libraries) {
    text +=
        fmt::format("{:<14} {}\n", library.name,
                    library.version.empty() ? "not found when this was built" : library.version);
  }
  text += fmt::format("{:<14}", "executors");
  for (const std::string& executor : build.executors) text += " " + executor;
  if (build.executors.empty()) text += " none";
  return text;
}

}  // namespace shardwright::cli
