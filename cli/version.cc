#include "cli/version.h"

#include <fmt/core.h>

namespace shardwright::cli {

std::string version_text() {
  return fmt::format("shardwright {}", SHARDWRIGHT_VERSION);
}

}  // namespace shardwright::cli
