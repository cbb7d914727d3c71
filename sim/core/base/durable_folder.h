// SPDX-License-Identifier: Apache-2.0
// Folders that are still there after a power cut: each is flushed in the one above it, or what is
// later flushed within it may be lost with its name.
#pragma once

#include <filesystem>

namespace shardwright {

/// Makes the folder and what is missing of its parents. Throws Error.
void make_durable_folder(const std::filesystem::path& folder);

}  // namespace shardwright
