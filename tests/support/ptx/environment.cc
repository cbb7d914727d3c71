// SPDX-License-Identifier: Apache-2.0
// With SHARDWRIGHT_PTX="FILE..." the tests of kernels on the processor also run what they launch as
// that PTX (oracle.h), with the mathematical functions of math_functions.ptx, fail where it
// differs or where no test launches one of its kernels, and say what was covered.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "tests/support/ptx/math_functions.h"
#include "tests/support/ptx/oracle.h"

namespace ptx {
namespace {

class OracleEnvironment : public ::testing::Environment {
 public:
  explicit OracleEnvironment(std::string files) : files_(std::move(files)) {}

  void SetUp() override {
    std::istringstream files(files_);
    for (std::string file; files >> file;) {
      std::ifstream in(file);
      ASSERT_TRUE(in) << file << " cannot be read";
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      if (file.ends_with("math_functions.ptx")) {
        use_math_functions(text);
      } else {
        oracle_.add(text);
      }
    }
    cuda_on_cpu::set_runner([this](const cuda_on_cpu::Launch& launch) { oracle_.run(launch); });
  }

  void TearDown() override {
    cuda_on_cpu::set_runner({});
    const Coverage all = oracle_.coverage();
    std::cout << "PTX: " << all.launches << " launches, " << all.kernels_run << " of "
              << all.kernels << " kernels, " << all.opcodes_run.size() << " of "
              << all.opcodes.size() << " opcodes, " << all.instructions_run << " of "
              << all.instructions << " instructions\n";
    for (const std::string& name : all.not_run) ADD_FAILURE() << "no test launches " << name;
    for (const std::string& opcode : all.opcodes) {
      if (!all.opcodes_run.contains(opcode)) std::cout << "PTX: never executed: " << opcode << "\n";
    }
  }

 private:
  std::string files_;
  Oracle oracle_{[](const std::string& what) { ADD_FAILURE() << what; }};
};

[[maybe_unused]] const ::testing::Environment* const kEnvironment = [] {
  const char* files = std::getenv("SHARDWRIGHT_PTX");
  return files == nullptr ? nullptr
                          : ::testing::AddGlobalTestEnvironment(new OracleEnvironment(files));
}();

}  // namespace
}  // namespace ptx
