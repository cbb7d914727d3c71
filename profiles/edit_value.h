// SPDX-License-Identifier: Apache-2.0
// Replaces one value in the text of a shipped cluster or stack file and leaves every other byte as
// it is.
//
// Those files hold one value to a line, {"value": .., "source": ..}, with groups of values indented
// under their name; diffs of a re-fit then show exactly what changed. Files in another form are
// refused.
#pragma once

#include <string>
#include <string_view>

#include "profiles/fields.h"

namespace shardwright::profiles {

/// `text` with the number at `path` ("host.step_s") replaced, and its source, confidence and date
/// by those of `origin`; its unit stays. `name` stands for the file in errors. Throws Error when
/// the path is not there on a line of its own.
std::string with_value(std::string_view text, const std::string& name, std::string_view path,
                       double value, const Origin& origin);

}  // namespace shardwright::profiles
