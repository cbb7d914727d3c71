// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/mcp/server.h"
#include "cli/verbs/verbs.h"
#include "sim/core/base/check.h"

namespace shardwright::cli {
namespace {

class McpVerb : public Verb {
 public:
  McpVerb()
      : Verb("mcp",
             "serves predict, explain, tune and size to an assistant (Model Context Protocol, "
             "stdio)") {}
  void declare_flags(Command& command) override {
    command
        .add("--root", root_,
             "the folder below which files may be read, beside those that ship (default: the "
             "current one)")
        .type_name("DIR");
    command.add("--time-limit", time_limit_s_, "seconds after which a call is ended", {1e-3, 1e9})
        .type_name("S")
        .shows_default();
  }
  ExitCode run(const Context& context) override {
    SHARDWRIGHT_CHECK(context.outline != nullptr, "the command line is known");
    if (host() != nullptr) {
      throw Error("mcp serves from a process of its own: start the program.",
                  ExitCode::kMissingDevice);
    }
    std::error_code failed;
    const std::filesystem::path root = std::filesystem::canonical(root_, failed);
    if (failed || !std::filesystem::is_directory(root, failed))
      throw Error(fmt::format("--root is '{}', expected a folder", root_));
    ::setenv(kReadRoot, root.c_str(), 1);  // for the tools, which are processes of their own
    bool lost = false;
    std::vector<ToolVerb> verbs;
    for (const VerbOutline& verb : context.outline()) {
      ToolVerb& tool = verbs.emplace_back(ToolVerb{verb.name, {}});
      for (const OptionOutline& option : verb.options)
        tool.options.push_back({option.names.front(), option.type, option.description});
    }
    serve_mcp(mcp_tools(verbs), 0, time_limit_s_, [&lost](const std::string& message) {
      lost = std::fputs((message + "\n").c_str(), stdout) == EOF || std::fflush(stdout) != 0;
    });
    return lost ? ExitCode::kFailed : ExitCode::kDone;
  }

 private:
  std::string root_ = ".";
  double time_limit_s_ = 600;
};

}  // namespace

std::unique_ptr<Verb> make_mcp_verb() {
  return std::make_unique<McpVerb>();
}

}  // namespace shardwright::cli
