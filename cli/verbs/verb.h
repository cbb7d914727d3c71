// SPDX-License-Identifier: Apache-2.0
// A verb of the command line: `shardwright predict`, `shardwright doctor`, ...
//
// Each verb is one class in cli/verbs/<name>.cc. Its flags are data members that declare_flags()
// binds to the command line; run() does the work once the whole of it has been understood.
// cli/verbs/verbs.h declares the factories and verbs.cc lists them in the order of --help.
//
// Manners: results go to results(), everything else to messages() (cli/streams.h; stdout and stderr
// in a process of its own); bad input throws Error; nothing calls exit().
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags/command_line.h"
#include "cli/render/text/terminal.h"
#include "cli/streams.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {

/// What main knows and every verb may need besides its own flags.
struct Context {
  Terminal out;                // of results()
  Terminal err;                // of messages(): progress and what else is said
  std::string command_line{};  // "shardwright tune --model llama-3-70b", for files that keep it
  std::function<std::vector<VerbOutline>()> outline{};  // of all verbs, for what tells of them
};

class Verb {
 public:
  /// `summary` is one line for the list of verbs in --help; no full stop.
  Verb(std::string name, std::string summary)
      : name_(std::move(name)), summary_(std::move(summary)) {}
  virtual ~Verb() = default;

  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }
  /// Binds flags to members of this object. Called once, before parsing.
  virtual void declare_flags(Command& command) = 0;
  /// Does the work. Returns the exit code; bad input throws Error with a code of its own.
  virtual ExitCode run(const Context& context) = 0;

 private:
  std::string name_, summary_;
};

}  // namespace shardwright::cli
