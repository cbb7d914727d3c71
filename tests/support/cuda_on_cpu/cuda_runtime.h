// SPDX-License-Identifier: Apache-2.0
// Stands before CUDA's own header on the include path of what is compiled for the processor.
#pragma once

#include "tests/support/cuda_on_cpu/emulation.h"     // IWYU pragma: export
#include "tests/support/cuda_on_cpu/fake_runtime.h"  // IWYU pragma: export
#include "tests/support/cuda_on_cpu/ptx.h"           // IWYU pragma: export
