// SPDX-License-Identifier: Apache-2.0
// What a person should know of a job before reading its answer: what its model's configuration says
// and the answer does not contain.
#pragma once

#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/core/model.h"

namespace shardwright::cli {

/// One sentence each; none for most models. `longest` is the longest sequence that is asked about;
/// 0: none is.
std::vector<std::string> model_notes(const Model& model, std::int64_t longest);

/// Each on stderr as "note: ...".
void tell_notes(const Terminal& err, const std::vector<std::string>& notes);

}  // namespace shardwright::cli
