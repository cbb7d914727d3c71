// SPDX-License-Identifier: Apache-2.0
// A library of CUDA that the program does not link: it is loaded by the first call of it.
//
// A program that links them does not start where one is missing, not even to say which; and
// cuBLASLt alone has 390 thousand addresses that the loader must put right, 60 ms of every start.
// So the program brings the functions that it calls, each of which passes its arguments on to the
// library's own of that name. They throw Error
// (ExitCode::kMissingDevice) where there is no library.
#pragma once

#include <memory>
#include <string>

#include "exec/recorder.h"

namespace shardwright::exec::libraries {

/// Why a part of a library, of that name beside it or where the loader looks, cannot be loaded;
/// empty where it is. It stays loaded.
std::string why_without(void* library, const std::string& part);

/// Ranges of NVTX, which Nsight Systems shows. Without a profiler they cost some nanoseconds each.
std::unique_ptr<RangeMarker> make_nvtx_marker();

}  // namespace shardwright::exec::libraries
