# SPDX-License-Identifier: Apache-2.0
# cuDNN and the headers of cudnn-frontend, for fused attention: target shardwright_cuda::cudnn. Since 9.8 cuDNN plans for
# a described device, and the described device is how the graphs are checked without a GPU. The headers are looked for
# under CUDNN_FRONTEND_ROOT, among Python's packages (pip install nvidia-cudnn-frontend) and where cuDNN is.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_library.cmake)
shardwright_find_cuda_library(ShardwrightCUDNN cudnn HEADER cudnn.h LIBRARY cudnn ROOT CUDNN_ROOT)
shardwright_version_from_macros(ShardwrightCUDNN cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
if(NOT ShardwrightCUDNNFrontend_INCLUDE_DIR)
  execute_process(COMMAND python3 -c "import site; print(';'.join([*site.getsitepackages(), site.getusersitepackages()]))"
                  OUTPUT_VARIABLE python_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(ShardwrightCUDNNFrontend_INCLUDE_DIR cudnn_frontend.h
            HINTS ${CUDNN_FRONTEND_ROOT} $ENV{CUDNN_FRONTEND_ROOT} ${python_packages} ${ShardwrightCUDNN_INCLUDE_DIR}
            PATH_SUFFIXES include)
  mark_as_advanced(ShardwrightCUDNNFrontend_INCLUDE_DIR)
endif()
shardwright_version_from_macros(ShardwrightCUDNNFrontend cudnn_frontend_version.h CUDNN_FRONTEND_MAJOR_VERSION
                                CUDNN_FRONTEND_MINOR_VERSION CUDNN_FRONTEND_PATCH_VERSION)
if(ShardwrightCUDNNFrontend_VERSION VERSION_LESS SHARDWRIGHT_cudnn_frontend_MINIMUM)
  unset(ShardwrightCUDNNFrontend_INCLUDE_DIR CACHE)
  set(ShardwrightCUDNNFrontend_VERSION "")
endif()
set(ShardwrightCUDNN_FIND_VERSION 9.8)
shardwright_finish_cuda_library(ShardwrightCUDNN cudnn ShardwrightCUDNNFrontend_INCLUDE_DIR)
