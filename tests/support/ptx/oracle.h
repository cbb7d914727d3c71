// SPDX-License-Identifier: Apache-2.0
// A second opinion on every kernel that tests run on the processor: the emulation of CUDA runs the
// kernel's source as g++ compiles it; the oracle puts memory back, runs the same launch as nvcc's
// PTX, and expects every byte of all memory to be the same.
//
// PTX is made with -fmad=false, because g++ does not fuse products and sums where the source does
// not say so either; what else of it is rounded as a GPU would not is said in float_operations.cc
// and matrix_operations.cc. A NaN equals any other NaN, for a GPU makes one kind only.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cuda_on_cpu/emulation.h"
#include "tests/support/ptx/module.h"

namespace ptx {

struct Coverage {
  std::size_t launches = 0;
  std::size_t kernels = 0, kernels_run = 0;
  std::size_t instructions = 0, instructions_run = 0;
  std::set<std::string> opcodes, opcodes_run;
  std::vector<std::string> not_run;  // kernels
};

class Oracle {
 public:
  using Report = std::function<void(const std::string&)>;

  /// `report` hears of every launch whose result differs, or that PTX cannot do.
  explicit Oracle(Report report) : report_(std::move(report)) {}
  /// The kernels of a text of PTX, by their names as C++ writes them. Throws Failure.
  void add(const std::string& text);
  /// Runs a launch of the emulation, and again as PTX if its kernel is known and blocks run in
  /// ascending order (an order of threads is the emulation's affair). Memory is left as the
  /// emulation left it.
  void run(const cuda_on_cpu::Launch& launch);
  Coverage coverage() const;

 private:
  struct Known {
    Kernel kernel;
    std::vector<bool> executed;
  };
  Report report_;
  std::map<std::string, Known> kernels_;
  std::size_t launches_ = 0;
};

/// The function at an address, as C++ writes it; empty where the program's symbols do not say.
std::string function_at(const void* address);
/// A mangled name as C++ writes it.
std::string demangled(const std::string& name);

}  // namespace ptx
