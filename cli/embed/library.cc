// SPDX-License-Identifier: Apache-2.0
#include <new>
#include <string>
#include <vector>

#include "cli/child.h"
#include "cli/embed/shardwright.h"
#include "cli/embed/verb_call.h"
#include "profiles/data_file.h"

#define SHARDWRIGHT_EXPORTED extern "C" __attribute__((visibility("default")))

struct shardwright_call {
  shardwright::cli::VerbCall call;
};

SHARDWRIGHT_EXPORTED void shardwright_set_data(const char* folder) {
  shardwright::profiles::set_shipped_data_dir(folder);
}

SHARDWRIGHT_EXPORTED shardwright_call* shardwright_new_call() {
  return new (std::nothrow) shardwright_call;
}

SHARDWRIGHT_EXPORTED int shardwright_run(shardwright_call* call, int count,
                                         const char* const* words) {
  return call->call.run({words, words + count});
}

SHARDWRIGHT_EXPORTED void shardwright_stop(shardwright_call* call) {
  call->call.stop();
}

SHARDWRIGHT_EXPORTED const char* shardwright_results(const shardwright_call* call) {
  return call->call.results().c_str();
}

SHARDWRIGHT_EXPORTED const char* shardwright_messages(const shardwright_call* call) {
  return call->call.messages().c_str();
}

SHARDWRIGHT_EXPORTED void shardwright_end_call(shardwright_call* call) {
  delete call;
}

SHARDWRIGHT_EXPORTED void shardwright_set_own_start(int count, const char* const* words) {
  shardwright::cli::set_own_start({words, words + count});
}

SHARDWRIGHT_EXPORTED int shardwright_program(int argc, const char* const* argv) {
  return shardwright::cli::run_as_program(argc, argv);
}
