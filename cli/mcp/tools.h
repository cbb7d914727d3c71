// SPDX-License-Identifier: Apache-2.0
// The tools that an assistant is offered: verbs of this program with the names and words of their
// flags. What they take follows from the command line's own table, so a flag that a verb gains, its
// tool has.
#pragma once

#include <cstddef>
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
  std::vector<std::string> always;       // flags that it always has: "--json"
  std::vector<std::string> usual;        // arguments that most questions need
  std::vector<ToolOption> options = {};  // what it may be given
};

/// The tool that describes the arguments of the others; it has no verb.
inline constexpr const char* kDescribe = "describe";

/// predict, tune, size, explain. Flags that write files are not among their options.
std::vector<McpTool> mcp_tools(const std::vector<ToolVerb>& verbs);

/// JSON Schema of the arguments, which are the flags' names with underscores: short, since every
/// conversation of an assistant begins with all of them. Properties are the usual ones; what else
/// is taken, describe() says.
nlohmann::ordered_json input_schema(const McpTool& tool);

/// What `describe` answers: every argument of a tool with its words, or the one that is asked for.
/// Throws Error naming a tool or an argument that there is not.
nlohmann::ordered_json describe(const std::vector<McpTool>& tools, const nlohmann::json& arguments);

/// Whether the call asks for the whole document. Throws Error.
bool wants_all(const nlohmann::json& arguments);

/// The command line of a call. Throws Error naming an argument that the tool does not have.
std::vector<std::string> arguments_of(const McpTool& tool, const nlohmann::json& arguments);

// An answer that an assistant can read: the document of a verb below a number of letters.
//
// Only as far as it has to: plans that were weighed are told in words, then what is told elsewhere
// in the same document goes (every option of `size`, beside the best of each cluster), then lists
// of objects and sentences are shortened from their ends, longest first; nulls and digits that
// nobody reads always. What was left out is named, and `full=true` of the call brings all of it.

inline constexpr std::size_t kLongestAnswer = 8000;  // letters

/// Unchanged where it is short enough as it is.
nlohmann::ordered_json brief_answer(const nlohmann::ordered_json& document,
                                    std::size_t most = kLongestAnswer);

}  // namespace shardwright::cli
