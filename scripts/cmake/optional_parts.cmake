# SPDX-License-Identifier: Apache-2.0
# What the machine may lack: CUDA and its libraries, MPI, Google Benchmark. Each becomes an imported target
# that later folders link when it exists, and a row of the summary that says why when it does not:
#   CUDA::cudart, CUDA::cublasLt, ...   the toolkit (CMake's own module)
#   shardwright_cuda::{nccl,cupti,cudnn}
#   MPI::MPI_CXX, benchmark::benchmark
# The driver library libcuda is never linked: a program that links it does not start on a machine without a
# driver. What is needed from it is loaded at run time.

set(SHARDWRIGHT_ENABLE_CUDA AUTO CACHE STRING "Use CUDA: AUTO (when the toolkit is found), ON or OFF")
set_property(CACHE SHARDWRIGHT_ENABLE_CUDA PROPERTY STRINGS AUTO ON OFF)
option(SHARDWRIGHT_ENABLE_MPI "Use MPI when it is found" ON)

set(SHARDWRIGHT_SUMMARY "")
# shardwright_summary(NAME FOUND VERSION WHY_NOT): one row of the block that ends the configuration.
function(shardwright_summary name found version why_not)
  string(LENGTH "${name}" length)
  math(EXPR padding "18 - ${length}")
  string(REPEAT " " ${padding} spaces)
  if(found)
    set(row "  ${name}${spaces}on   ${version}")
  else()
    set(row "  ${name}${spaces}off  ${why_not}")
  endif()
  set(SHARDWRIGHT_SUMMARY "${SHARDWRIGHT_SUMMARY}\n${row}" PARENT_SCOPE)
endfunction()

string(TOUPPER "${SHARDWRIGHT_ENABLE_CUDA}" shardwright_cuda_wish)
if(NOT shardwright_cuda_wish MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|1|0)$")
  message(FATAL_ERROR
    "SHARDWRIGHT_ENABLE_CUDA is '${SHARDWRIGHT_ENABLE_CUDA}', but it must be AUTO, ON or OFF.")
endif()

set(SHARDWRIGHT_CUDA_FOUND FALSE)
set(shardwright_no_cuda "SHARDWRIGHT_ENABLE_CUDA is ${SHARDWRIGHT_ENABLE_CUDA}")
if(shardwright_cuda_wish STREQUAL AUTO OR shardwright_cuda_wish)
  find_package(CUDAToolkit QUIET)
  set(SHARDWRIGHT_CUDA_FOUND ${CUDAToolkit_FOUND})
  set(shardwright_no_cuda "no toolkit: nvcc is not on the PATH, nor under CUDAToolkit_ROOT")
  if(NOT SHARDWRIGHT_CUDA_FOUND AND NOT shardwright_cuda_wish STREQUAL AUTO)
    message(FATAL_ERROR "SHARDWRIGHT_ENABLE_CUDA is ON, but there is ${shardwright_no_cuda}.")
  endif()
endif()
shardwright_summary("CUDA toolkit" "${SHARDWRIGHT_CUDA_FOUND}" "${CUDAToolkit_VERSION}"
                    "${shardwright_no_cuda}")

if(SHARDWRIGHT_CUDA_FOUND)
  # Ampere, Ada, Hopper, data-centre and consumer Blackwell; the last one also as PTX, for what comes later.
  set(SHARDWRIGHT_CUDA_ARCHITECTURES "80-real;89-real;90a-real;100-real;120" CACHE STRING
      "GPU architectures that CUDA code is compiled for")
  set(CMAKE_CUDA_ARCHITECTURES "${SHARDWRIGHT_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
  endif()
  enable_language(CUDA)
  # Libraries in /usr/include would else become -isystem /usr/include, which hides the C headers from nvcc.
  list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    # CMake before 3.26 does not know the C++20 of nvcc.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
endif()

foreach(library NCCL CUPTI CUDNN)
  string(TOLOWER ${library} name)
  if(SHARDWRIGHT_CUDA_FOUND)
    find_package(Shardwright${library} QUIET)
    set(why_not "not found beside the toolkit, nor under ${library}_ROOT")
  else()
    set(why_not "needs the CUDA toolkit")
  endif()
  shardwright_summary(${library} "${Shardwright${library}_FOUND}" "${Shardwright${library}_VERSION}"
                      "${why_not}")
endforeach()

set(why_not "SHARDWRIGHT_ENABLE_MPI is OFF")
if(SHARDWRIGHT_ENABLE_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
  set(why_not "no mpicxx on the PATH")
endif()
# Which implementation, by its own header: MPI_CXX_VERSION is the standard's.
set(SHARDWRIGHT_MPI_NAME "MPI")
set(SHARDWRIGHT_MPI_VERSION "${MPI_CXX_VERSION}")
if(MPI_CXX_FOUND)
  find_file(SHARDWRIGHT_MPI_HEADER mpi.h HINTS ${MPI_CXX_INCLUDE_DIRS} NO_DEFAULT_PATH)
  mark_as_advanced(SHARDWRIGHT_MPI_HEADER)
  if(SHARDWRIGHT_MPI_HEADER)
    file(STRINGS "${SHARDWRIGHT_MPI_HEADER}" numbers REGEX "define +(OMPI_(MAJOR|MINOR|RELEASE)_VERSION|MPICH_VERSION) ")
    if(numbers MATCHES "OMPI")
      set(SHARDWRIGHT_MPI_NAME "Open MPI")
    elseif(numbers MATCHES "MPICH")
      set(SHARDWRIGHT_MPI_NAME "MPICH")
    endif()
    if(numbers)
      string(REGEX REPLACE "[^;]*VERSION +\"?([0-9.]+)\"?[^;]*" "\\1" numbers "${numbers}")
      string(REPLACE ";" "." SHARDWRIGHT_MPI_VERSION "${numbers}")
    endif()
  endif()
endif()
shardwright_summary("MPI" "${MPI_CXX_FOUND}" "${SHARDWRIGHT_MPI_NAME} ${SHARDWRIGHT_MPI_VERSION}" "${why_not}")

find_package(SQLite3 QUIET)
shardwright_summary("SQLite" "${SQLite3_FOUND}" "${SQLite3_VERSION}"
                    "not found (Debian: libsqlite3-dev); databases of Nsight Systems are refused")

# What import-config reads of other trainers. A static program takes the static library, whose package says nothing of
# it, and for other machines than this one the library is made from sources (header_libraries.cmake).
set(SHARDWRIGHT_TOML_VERSION "")
set(why_no_yaml "not found (Debian: libyaml-cpp-dev); import-config refuses YAML")
set(why_no_toml "not found (Debian: libtomlplusplus-dev); import-config refuses TOML")
if(EMSCRIPTEN OR SHARDWRIGHT_HEADER_LIBRARIES)
  set(why_no_yaml "SHARDWRIGHT_YAML_CPP_SOURCE names no sources; import-config refuses YAML")
else()
  find_package(yaml-cpp QUIET)
  if(yaml-cpp_FOUND AND SHARDWRIGHT_STATIC)
    find_library(SHARDWRIGHT_STATIC_YAML_CPP libyaml-cpp.a)
    mark_as_advanced(SHARDWRIGHT_STATIC_YAML_CPP)
    if(SHARDWRIGHT_STATIC_YAML_CPP)
      set_target_properties(yaml-cpp PROPERTIES IMPORTED_LOCATION_NONE "${SHARDWRIGHT_STATIC_YAML_CPP}"
                                                IMPORTED_LOCATION "${SHARDWRIGHT_STATIC_YAML_CPP}")
    else()
      set(yaml-cpp_FOUND FALSE)
      set(why_no_yaml "no libyaml-cpp.a for a static program; import-config refuses YAML")
    endif()
  endif()
  find_path(SHARDWRIGHT_TOML_INCLUDE_DIR toml++/toml.h)
endif()
mark_as_advanced(SHARDWRIGHT_TOML_INCLUDE_DIR)
if(SHARDWRIGHT_TOML_INCLUDE_DIR)
  file(STRINGS "${SHARDWRIGHT_TOML_INCLUDE_DIR}/toml++/impl/version.h" numbers REGEX "TOML_LIB_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]+" "" numbers "${numbers}")
  string(REPLACE ";" "." SHARDWRIGHT_TOML_VERSION "${numbers}")
endif()
shardwright_summary("yaml-cpp" "${yaml-cpp_FOUND}" "${yaml-cpp_VERSION}" "${why_no_yaml}")
shardwright_summary("toml++" "${SHARDWRIGHT_TOML_VERSION}" "${SHARDWRIGHT_TOML_VERSION}" "${why_no_toml}")

set(why_not "SHARDWRIGHT_BUILD_BENCHMARKS is OFF")
if(SHARDWRIGHT_BUILD_BENCHMARKS)
  find_package(benchmark QUIET)
  set(why_not "not found (Debian: libbenchmark-dev)")
endif()
shardwright_summary("Google Benchmark" "${benchmark_FOUND}" "${benchmark_VERSION}" "${why_not}")
