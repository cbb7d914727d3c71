// SPDX-License-Identifier: Apache-2.0
// The "schema" key of the files this project writes: "shardwright.plan/1.0".
//
// A higher minor version adds what an older reader may ignore; a higher major version changes what
// is there, and an older reader must not guess.
#pragma once

#include <string_view>

#include "sim/core/base/json_file.h"

namespace shardwright {

/// Throws Error unless the root's "schema" is `name` ("shardwright.plan") of the major version
/// `major`; a newer one is said to be newer.
void require_schema(const JsonReader& root, std::string_view name, int major);

}  // namespace shardwright
