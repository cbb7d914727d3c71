// SPDX-License-Identifier: Apache-2.0
// The program inside the planner page: what main() is elsewhere. The worker (worker.js) hands it
// the words of a command line and reads the results where they lie; messages go to a terminal that
// the worker plays (terminal.js), so that progress shows.
#include <emscripten/emscripten.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cli/embed/verb_call.h"

namespace {

std::unique_ptr<shardwright::cli::VerbCall> last_call;

}  // namespace

/// Runs the program with `count` words that stand behind each other in `words`, each ended by a
/// zero. Returns the exit code.
extern "C" EMSCRIPTEN_KEEPALIVE int shardwright_run(int count, const char* words) {
  using shardwright::cli::VerbCall;
  std::vector<std::string> arguments;
  for (int i = 0; i < count; ++i) {
    arguments.emplace_back(words);
    words += std::strlen(words) + 1;
  }
  last_call = std::make_unique<VerbCall>(VerbCall::Messages::kShown);
  return last_call->run(arguments);
}

/// What the last run printed, UTF-8 that ends with a zero; valid until the next.
extern "C" EMSCRIPTEN_KEEPALIVE const char* shardwright_results() {
  return last_call ? last_call->results().c_str() : "";
}
