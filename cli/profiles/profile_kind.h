// SPDX-License-Identifier: Apache-2.0
// Which kind of data file a name or a path stands for: a cluster (a calibrated profile is one), a
// GPU or a stack.
#pragma once

#include <string>
#include <string_view>

namespace shardwright::cli {

enum class ProfileKind { kCluster, kGpu, kStack };

/// "cluster", "gpu", "stack".
std::string_view name_of(ProfileKind kind);

/// By the schema of the file, or by what ships under the name. Throws Error for neither.
ProfileKind profile_kind(const std::string& name_or_path);

/// The name is the path of a file, not one that ships.
bool is_path(const std::string& name_or_path);

}  // namespace shardwright::cli
