# SPDX-License-Identifier: Apache-2.0
# The common part of the Find modules for the libraries that ship beside the CUDA toolkit and have no
# CMake packages of their own. Call after find_package(CUDAToolkit).
include_guard(GLOBAL)
include(FindPackageHandleStandardArgs)

# Sets <package>_INCLUDE_DIR and <package>_LIBRARY in the cache.
macro(shardwright_find_cuda_library package name)
  cmake_parse_arguments(_fcl "" "HEADER;LIBRARY;ROOT;SUBFOLDER" "" ${ARGN})
  set(_fcl_roots ${${_fcl_ROOT}} $ENV{${_fcl_ROOT}})
  find_path(${package}_INCLUDE_DIR ${_fcl_HEADER}
            HINTS ${_fcl_roots} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_TARGET_DIR}/${_fcl_SUBFOLDER}
            PATH_SUFFIXES include)
  find_library(${package}_LIBRARY ${_fcl_LIBRARY}
               HINTS ${_fcl_roots} ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_TARGET_DIR}/${_fcl_SUBFOLDER}
               PATH_SUFFIXES lib64 lib)
  mark_as_advanced(${package}_INCLUDE_DIR ${package}_LIBRARY)
endmacro()

# Sets <package>_VERSION to the values of the macros in the header, joined by dots.
function(shardwright_version_from_macros package header)
  set(path "${${package}_INCLUDE_DIR}/${header}")
  if(NOT EXISTS "${path}")
    return()
  endif()
  foreach(macro ${ARGN})
    file(STRINGS "${path}" line REGEX "^#define[ \t]+${macro}[ \t]+[0-9]+" LIMIT_COUNT 1)
    if(line MATCHES "[ \t]([0-9]+)")
      list(APPEND numbers ${CMAKE_MATCH_1})
    endif()
  endforeach()
  string(JOIN . version ${numbers})
  set(${package}_VERSION "${version}" PARENT_SCOPE)
endfunction()

# Decides <package>_FOUND, for which the variables that follow must be set, too, and makes the imported target.
macro(shardwright_finish_cuda_library package name)
  find_package_handle_standard_args(${package} REQUIRED_VARS ${package}_LIBRARY ${package}_INCLUDE_DIR ${ARGN}
                                    VERSION_VAR ${package}_VERSION)
  if(${package}_FOUND AND NOT TARGET shardwright_cuda::${name})
    add_library(shardwright_cuda::${name} UNKNOWN IMPORTED)
    set_target_properties(shardwright_cuda::${name} PROPERTIES
      IMPORTED_LOCATION "${${package}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${${package}_INCLUDE_DIR}")
  endif()
endmacro()
