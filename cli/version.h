// SPDX-License-Identifier: Apache-2.0
// What `shardwright --version` prints: our version, and those of what it was built with.
#pragma once

#include <string>

namespace shardwright::cli {

/// Several lines, the first "shardwright X.Y.Z"; no newline at the end.
std::string version_text();

}  // namespace shardwright::cli
