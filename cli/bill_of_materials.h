// SPDX-License-Identifier: Apache-2.0
// What `shardwright --version --json` prints: what this binary is made of, as a software bill of
// materials that scanners read (CycloneDX 1.5, JSON).
//
// The versions are those that the build found. Where a library is linked as a shared one the
// machine may load another: the system's packages tell (SECURITY.md).
#pragma once

#include <string>

#include "cli/build_info.h"

namespace shardwright::cli {

/// Ends in a newline. Libraries that the build did without are left out.
std::string bill_of_materials(const BuildInfo& build);

}  // namespace shardwright::cli
