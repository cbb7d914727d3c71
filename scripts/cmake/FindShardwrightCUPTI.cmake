# SPDX-License-Identifier: Apache-2.0
# CUPTI, which traces kernels and copies on the device: target shardwright_cuda::cupti.
# A toolkit keeps it in its main folders or under extras/CUPTI.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_library.cmake)
shardwright_find_cuda_library(ShardwrightCUPTI cupti HEADER cupti.h LIBRARY cupti ROOT CUPTI_ROOT
                              SUBFOLDER extras/CUPTI)
shardwright_version_from_macros(ShardwrightCUPTI cupti_version.h CUPTI_API_VERSION)
shardwright_finish_cuda_library(ShardwrightCUPTI cupti)
