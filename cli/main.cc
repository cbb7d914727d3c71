#include "cli/program.h"

int main(int argc, char** argv) {
  return shardwright::cli::run_program(argc, argv);
}
