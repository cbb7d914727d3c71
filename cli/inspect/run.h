// SPDX-License-Identifier: Apache-2.0
// `inspect run FILE` and `inspect checkpoint FOLDER`.
#pragma once

#include <string>

#include "cli/inspect/form.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// Every setting of a run with its value and where it comes from: the file, the environment, the
/// plan or a default. Throws Error as the run itself would.
std::string inspect_run(const std::string& path, Form form, const Terminal& out);

/// What is in a checkpoint, after its checksums were checked.
std::string inspect_checkpoint(const std::string& path, Form form, const Terminal& out);

}  // namespace shardwright::cli
