# SPDX-License-Identifier: Apache-2.0
# A toolchain for libraries that load on older systems: zig from PyPI (package ziglang) is clang with the stubs of every
# C library since 2.17 and a static C++ library. scripts/wheel writes the compilers that this names: `zig c++` and its
# kin, for the target it wants.
set(SHARDWRIGHT_HEADER_LIBRARIES ON)
foreach(tool IN ITEMS C:cc CXX:clang++ AR:ar RANLIB:ranlib)
  string(REGEX MATCH "^[^:]+" variable "${tool}")
  string(REGEX REPLACE "^[^:]+:" "" program "${tool}")
  if(variable MATCHES "^C")
    set(CMAKE_${variable}_COMPILER "$ENV{SHARDWRIGHT_ZIG}/${program}")
  else()
    set(CMAKE_${variable} "$ENV{SHARDWRIGHT_ZIG}/${program}" CACHE FILEPATH "")
  endif()
endforeach()
