# cuDNN, for fused attention: target shardwright_cuda::cudnn.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_library.cmake)
shardwright_find_cuda_library(ShardwrightCUDNN cudnn HEADER cudnn.h LIBRARY cudnn ROOT CUDNN_ROOT)
shardwright_version_from_macros(ShardwrightCUDNN cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
shardwright_finish_cuda_library(ShardwrightCUDNN cudnn)
