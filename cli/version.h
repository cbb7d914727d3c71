// What `shardwright --version` prints: our version, and those of what was compiled in.
#pragma once

#include <string>

namespace shardwright::cli {

std::string version_text();

}  // namespace shardwright::cli
