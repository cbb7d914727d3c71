# SPDX-License-Identifier: Apache-2.0
# NCCL, the collectives library of the CUDA executor: target shardwright_cuda::nccl.
# Looked for beside the CUDA toolkit, in the system folders and under NCCL_ROOT.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_library.cmake)
shardwright_find_cuda_library(ShardwrightNCCL nccl HEADER nccl.h LIBRARY nccl ROOT NCCL_ROOT)
shardwright_version_from_macros(ShardwrightNCCL nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
shardwright_finish_cuda_library(ShardwrightNCCL nccl)
