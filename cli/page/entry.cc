// SPDX-License-Identifier: Apache-2.0
// The program inside the planner page: what main() is elsewhere. The worker (engine_worker.js)
// hands it the words of a command line; results land in a file of the page's own file system,
// messages on a terminal that the worker plays. So a page can do exactly what the command line can,
// and nothing has to be told to it twice.
#include <emscripten/emscripten.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "cli/program.h"
#include "cli/verbs/verbs.h"

/// Runs the program with `count` words that stand behind each other in `words`, each ended by a
/// zero. What it prints is in the file /stdout afterwards. Returns the exit code.
extern "C" EMSCRIPTEN_KEEPALIVE int shardwright_run(int count, const char* words) {
  std::vector<const char*> arguments{"shardwright"};
  for (int i = 0; i < count; ++i) {
    arguments.push_back(words);
    words += std::strlen(words) + 1;
  }
  arguments.push_back(nullptr);
  if (std::freopen("/stdout", "w", stdout) == nullptr) return 1;
  const int code =
      shardwright::cli::run_program(count + 1, arguments.data(), shardwright::cli::make_verbs(),
                                    shardwright::cli::absent_verbs());
  std::fflush(stdout);
  std::fflush(stderr);
  return code;
}
