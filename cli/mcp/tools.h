// SPDX-License-Identifier: Apache-2.0
// The tools that an assistant is offered: verbs of this program with the names and words of their
// flags. What they take follows from the command line's own table, so a flag that a verb gains, its
// tool has.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardwright::cli {

/// A flag of a verb.
struct ToolOption {
  std::string flag;  // "--seq-len"
  std::string type;  // "N", "fp32|bf16"; empty: it takes no value
  std::string description;
};

struct ToolVerb {
  std::string name;
  std::vector<ToolOption> options;
};

struct McpTool {
  std::string name, title, description;
  std::string verb;
  std::vector<std::string> always;  // flags that it always has: "--json"
  std::vector<ToolOption> options;  // what it may be given
};

/// predict, tune, size, explain. Flags that write files are not among their options.
std::vector<McpTool> mcp_tools(const std::vector<ToolVerb>& verbs);

/// JSON Schema of the arguments: properties are the flags' names with underscores.
nlohmann::ordered_json input_schema(const McpTool& tool);

/// The command line of a call. Throws Error naming an argument that the tool does not have.
/// Whether the call asks for the whole document. Throws Error.
bool wants_all(const nlohmann::json& arguments);

std::vector<std::string> arguments_of(const McpTool& tool, const nlohmann::json& arguments);

}  // namespace shardwright::cli
