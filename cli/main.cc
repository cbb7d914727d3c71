// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"
#include "cli/verbs/verbs.h"

int main(int argc, char** argv) {
  return shardwright::cli::run_program(argc, argv, shardwright::cli::make_verbs(),
                                       shardwright::cli::absent_verbs());
}
