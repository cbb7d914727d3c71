// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <vector>

#include "cli/mcp/server.h"
#include "cli/verbs/outward.h"
#include "sim/core/check.h"

namespace shardwright::cli {
namespace {

class McpVerb : public Verb {
 public:
  McpVerb()
      : Verb("mcp",
             "serves predict, explain, tune and size to an assistant (Model Context Protocol, "
             "stdio)") {}
  void declare_flags(Command&) override {}
  ExitCode run(const Context& context) override {
    SHARDWRIGHT_CHECK(context.outline != nullptr, "the command line is known");
    if (host() != nullptr) {
      throw Error("mcp serves from a process of its own: start the program.",
                  ExitCode::kMissingDevice);
    }
    bool lost = false;
    std::vector<ToolVerb> verbs;
    for (const VerbOutline& verb : context.outline()) {
      ToolVerb& tool = verbs.emplace_back(ToolVerb{verb.name, {}});
      for (const OptionOutline& option : verb.options)
        tool.options.push_back({option.names.front(), option.type, option.description});
    }
    serve_mcp(mcp_tools(verbs), 0, [&lost](const std::string& message) {
      lost = std::fputs((message + "\n").c_str(), stdout) == EOF || std::fflush(stdout) != 0;
    });
    return lost ? ExitCode::kFailed : ExitCode::kDone;
  }
};

}  // namespace

std::unique_ptr<Verb> make_mcp_verb() {
  return std::make_unique<McpVerb>();
}

}  // namespace shardwright::cli
