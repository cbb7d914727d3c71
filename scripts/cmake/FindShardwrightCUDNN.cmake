# SPDX-License-Identifier: Apache-2.0
# cuDNN, for fused attention: target shardwright_cuda::cudnn. Since 9.8 it plans for a described device, and the
# described device is how the graphs are checked without a GPU.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_library.cmake)
shardwright_find_cuda_library(ShardwrightCUDNN cudnn HEADER cudnn.h LIBRARY cudnn ROOT CUDNN_ROOT)
shardwright_version_from_macros(ShardwrightCUDNN cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
set(ShardwrightCUDNN_FIND_VERSION 9.8)
shardwright_finish_cuda_library(ShardwrightCUDNN cudnn)
