# SPDX-License-Identifier: Apache-2.0
# Programs for machines that lack the packages they were built with (scripts/gpu_package): everything is linked
# statically but the C library and CUDA's shared libraries, which are looked for beside the program.
if(NOT SHARDWRIGHT_STATIC)
  return()
endif()
set(Boost_USE_STATIC_LIBS ON)
set(SHARDWRIGHT_ENABLE_MPI OFF)
# Debian's fmt comes without a static library, but all of it is in its headers, too.
add_compile_definitions(FMT_HEADER_ONLY=1)
find_library(ZLIB_LIBRARY NAMES libz.a z)
find_library(SQLite3_LIBRARY NAMES libsqlite3.a sqlite3)
# What libstdc++.a brings along and nobody calls goes: std::random_device of Debian 12 wants glibc 2.36.
add_link_options(-static-libstdc++ -static-libgcc -Wl,--as-needed -Wl,--gc-sections)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_SKIP_BUILD_RPATH OFF)
set(CMAKE_BUILD_RPATH "\$ORIGIN/../lib")
