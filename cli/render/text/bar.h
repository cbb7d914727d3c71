// SPDX-License-Identifier: Apache-2.0
// A bar as long as its share: "██████▌" or "######".
#pragma once

#include <string>

#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// `share` of `columns`, between 0 and 1; anything above nothing shows at least something.
std::string bar(double share, int columns, const Terminal& out);

}  // namespace shardwright::cli
