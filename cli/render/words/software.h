// SPDX-License-Identifier: Apache-2.0
// Which software an answer is about, and what stands behind it: the first thing to read.
#pragma once

#include <string>

#include "profiles/profile.h"

namespace shardwright::cli {

/// "The steps are those of torch-compile, checked against 6 published runs on h100-80g; never on
/// b200."
std::string software_sentence(const profiles::Profile& profile);

}  // namespace shardwright::cli
