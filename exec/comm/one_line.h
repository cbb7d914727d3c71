// SPDX-License-Identifier: Apache-2.0
// Words of a peer, or of a stranger's file, for a terminal: cut to 4 KiB, and without what a
// terminal would obey.
#pragma once

#include <string>

namespace shardwright::exec {

/// ASCII's control characters and, in UTF-8, those of Latin 1 (U+0080 to U+009F) are replaced: ends
/// of lines and tabs by spaces, others by question marks.
std::string one_line(std::string text);

}  // namespace shardwright::exec
