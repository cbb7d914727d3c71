# SPDX-License-Identifier: Apache-2.0
# What a Release build is hardened with, and that no build loads code from where it happens to be started.
#
# Checks of the C library's buffer functions (_FORTIFY_SOURCE), canaries behind arrays on the stack, marked targets of
# indirect jumps (CET), and tables of addresses that are filled in at the start and then read-only (full RELRO).
# Sanitizers bring stronger checks of their own. Sources are named from the top of the repository, so that a binary
# does not tell where it was built.
option(SHARDWRIGHT_HARDENING "Harden Release builds; OFF only to measure what that costs" ON)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND SHARDWRIGHT_HARDENING AND NOT SHARDWRIGHT_SANITIZE AND NOT EMSCRIPTEN)
  set(hardening -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND hardening -fcf-protection)
  endif()
  list(APPEND hardening -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${PROJECT_BINARY_DIR}/=)
  foreach(option ${hardening})
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${option}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${option}>)
  endforeach()
  add_link_options(LINKER:-z,relro LINKER:-z,now)
endif()

# shardwright_run_path(TARGET): the run path of an installed program already while it is built. CMake would leave room
# in it for a longer one, which is an empty entry, which is the current folder.
function(shardwright_run_path target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON
                                             INSTALL_RPATH "${CMAKE_BUILD_RPATH}")
endfunction()
