// SPDX-License-Identifier: Apache-2.0
// Whether a profile file is fit to be shared: schema and ranges, where its values come from, and
// whether what it predicts is physically possible.
#pragma once

#include <string>
#include <vector>

namespace shardwright::cli {

struct Finding {
  bool error = false;  // the file must not be contributed as it is; else a remark
  std::string sentence;
};

/// Everything found, errors first. Only a file that cannot be read at all throws Error.
std::vector<Finding> validate_profile(const std::string& path);

}  // namespace shardwright::cli
