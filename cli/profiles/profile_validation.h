// SPDX-License-Identifier: Apache-2.0
// Whether a profile file is fit to be shared: schema and ranges, where its values come from, and
// whether what it predicts is physically possible.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli {

struct Finding {
  bool error = false;  // the file must not be contributed as it is; else a remark
  std::string sentence;
};

/// Everything found, errors first. Only a file that cannot be read at all throws Error.
std::vector<Finding> validate_profile(const std::string& path);

// Which kind of data file a name or a path stands for: a cluster (a calibrated profile is one), a
// GPU or a stack.

enum class ProfileKind { kCluster, kGpu, kStack };

/// "cluster", "gpu", "stack".
std::string_view name_of(ProfileKind kind);

/// By the schema of the file, or by what ships under the name. Throws Error for neither.
ProfileKind profile_kind(const std::string& name_or_path);

/// The name is the path of a file, not one that ships.
bool is_path(const std::string& name_or_path);

}  // namespace shardwright::cli
