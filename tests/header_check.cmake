# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, so that one that leans on its includers fails at once. Where x.cc includes x.h
# first, compiling x.cc shows it; for other headers a generated source includes the header twice and nothing
# else. Headers in a folder named cuda need the toolkit, those in a folder named after a library of it that
# library.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/sim/*.h ${PROJECT_SOURCE_DIR}/profiles/*.h ${PROJECT_SOURCE_DIR}/tuner/*.h
     ${PROJECT_SOURCE_DIR}/kernels/*.h ${PROJECT_SOURCE_DIR}/exec/*.h ${PROJECT_SOURCE_DIR}/cli/*.h)
# Those of kernels hold code for devices, which support/cuda_on_cpu compiles.
list(FILTER headers EXCLUDE REGEX "^kernels/cuda/")
if(NOT SHARDWRIGHT_CUDA_FOUND)
  list(FILTER headers EXCLUDE REGEX "/cuda/")
endif()
foreach(library nccl cupti cudnn)
  if(NOT TARGET shardwright_cuda::${library})
    list(FILTER headers EXCLUDE REGEX "/${library}/")
  endif()
endforeach()
set(header_sources "")
foreach(header ${headers})
  string(REGEX REPLACE "\\.h$" ".cc" implementation ${PROJECT_SOURCE_DIR}/${header})
  if(EXISTS ${implementation})
    file(STRINGS ${implementation} first_include REGEX "^#include" LIMIT_COUNT 1)
    if(first_include STREQUAL "#include \"${header}\"")
      continue()
    endif()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/header_check/${header}.cc)
  file(GENERATE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
  list(APPEND header_sources ${source})
endforeach()
add_library(header_check OBJECT ${header_sources})
target_include_directories(header_check PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(header_check PRIVATE ${existing_targets})
target_compile_options(header_check PRIVATE -O0 -g0)
foreach(target shardwright::exec_cuda shardwright::kernels_cuda)
  if(TARGET ${target})
    target_link_libraries(header_check PRIVATE ${target})
  endif()
endforeach()
shardwright_warnings(header_check)
