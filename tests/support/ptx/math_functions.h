// SPDX-License-Identifier: Apache-2.0
// CUDA's own exp, log and the like for the emulation of kernels: nvcc writes them into a kernel's
// PTX, and C++'s differ in the last bits, so where the two runs of a kernel are to be equal the
// emulation calls the PTX of math_functions.cu. How far these are from the truth, the tests of the
// kernels that call them bound.
#pragma once

#include <string>

namespace ptx {

/// From now on, in all kernels that the emulation runs. Throws Failure.
void use_math_functions(const std::string& text);

}  // namespace ptx
