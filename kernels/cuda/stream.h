// SPDX-License-Identifier: Apache-2.0
// CUDA's handle of a stream, for headers that launch kernels but need nothing else of CUDA.
#pragma once

using cudaStream_t = struct CUstream_st*;
