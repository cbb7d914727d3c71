// SPDX-License-Identifier: Apache-2.0
// A server of the Model Context Protocol on stdin and stdout: one JSON-RPC 2.0 message a line
// (modelcontextprotocol.io, specification of 2025-06-18; transports, tools, cancellation, ping).
//
// One call runs at a time, as a child process (child.h). While it runs, stdin is read on: pings are
// answered, a cancellation kills the child, further calls wait their turn.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/mcp/tools.h"

namespace shardwright::cli {

/// The environment variable by which a server restricts its tools: files are read below this folder
/// and where the shipped data are, nowhere else.
inline constexpr const char* kReadRoot = "SHARDWRIGHT_READ_ROOT";

/// Until the input of `in_fd` ends. `send` gets each answer, without its newline. A call that takes
/// longer than the limit is ended and answered with a sentence.
void serve_mcp(const std::vector<McpTool>& tools, int in_fd, double time_limit_s,
               const std::function<void(const std::string&)>& send);

}  // namespace shardwright::cli
