// SPDX-License-Identifier: Apache-2.0
// The style sheet of the report: light and dark by the reader's preference, plain on paper.
#pragma once

#include <string>

namespace shardwright::cli::html {

/// What a drawing may be filled with: class "f-NAME" in drawings, "b-NAME" in legends.
std::string style_sheet();

}  // namespace shardwright::cli::html
