// SPDX-License-Identifier: Apache-2.0
// Where the shell would find a program.
#pragma once

#include <filesystem>
#include <string>

namespace shardwright::cli {

/// The first executable file of that name on the PATH; empty when there is none.
std::filesystem::path program_path(const std::string& name);

}  // namespace shardwright::cli
