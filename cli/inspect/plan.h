// SPDX-License-Identifier: Apache-2.0
// `shardwright inspect plan FILE`: what a plan file says to do, and what was predicted for it.
#pragma once

#include <string>

#include "cli/inspect/form.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// What to print on stdout. Throws Error for a file that is no plan.
std::string inspect_plan(const std::string& path, Form form, const Terminal& out);

}  // namespace shardwright::cli
