# SPDX-License-Identifier: Apache-2.0
# Language level, warnings and sanitizers shared by every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# g++ collects its garbage first at 1 GiB: a seventh less time for the files of this project, a quarter more memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1048576>")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

if(SHARDWRIGHT_SANITIZE)
  # In code that it instruments gcc 12 warns falsely of uninitialised values, within std::regex for one (GCC bug 105562).
  set(options -fsanitize=${SHARDWRIGHT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND options -Wno-maybe-uninitialized)
  endif()
  foreach(option IN LISTS options)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
  add_link_options(-fsanitize=${SHARDWRIGHT_SANITIZE})
  # As g++ says of itself what tests ask for.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    foreach(sanitizer IN ITEMS address thread)
      string(TOUPPER ${sanitizer} name)
      if(SHARDWRIGHT_SANITIZE MATCHES ${sanitizer})
        add_compile_definitions(__SANITIZE_${name}__=1)
      endif()
    endforeach()
  endif()
endif()
if(SHARDWRIGHT_FUZZ)
  # Coverage for libFuzzer; bounds of the standard library's containers, which address sanitizers cannot tell.
  # The list of what is not covered is no dependency of any object: its hash in the command says when to compile again.
  set(uncovered ${PROJECT_SOURCE_DIR}/tests/fuzz/uncovered)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${uncovered})
  file(SHA256 ${uncovered} uncovered_hash)
  add_compile_options(-fsanitize=fuzzer-no-link -fsanitize-coverage-ignorelist=${uncovered})
  add_compile_definitions(_GLIBCXX_ASSERTIONS SHARDWRIGHT_UNCOVERED=${uncovered_hash})
endif()

# shardwright_warnings(TARGET): the warning set of the house rules.
function(shardwright_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SHARDWRIGHT_WERROR}>>:-Werror>)
endfunction()

# shardwright_optimize(TARGET LEVEL): how hard the compiler works on this target, unless the build is for a debugger.
# For what costs more to compile than to run (words, files, tests); the others take the level of the build type. With g,
# g++ takes as long as with 0, two thirds of what it takes with 1; for clang both are the same and Emscripten has no g.
function(shardwright_optimize target level)
  if(level STREQUAL g AND NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    set(level 1)
  endif()
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O${level}>)
endfunction()

# shardwright_unity(TARGET): with SHARDWRIGHT_UNITY, the files of one folder are compiled together, however many there are,
# and small folders with the next ones: most of the time of a small file goes into the headers of the standard library, fmt
# and JSON and into what they instantiate, which then is done once for all of them. So no two files of a room may name a
# helper alike.
function(shardwright_unity target)
  if(NOT SHARDWRIGHT_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.(cc|cu)$")
  set(folders "")
  foreach(source IN LISTS sources)
    get_filename_component(path "${source}" ABSOLUTE)
    get_filename_component(folder "${path}" DIRECTORY)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND folders ${folder})
    list(APPEND files_${folder} "${source}")
    set(bytes 0)
    if(EXISTS "${path}")
      file(SIZE "${path}" bytes)
    endif()
    math(EXPR bytes_${folder} "${bytes_${folder}} + ${bytes}")
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set(piece_bytes 0)
  foreach(folder IN LISTS folders)
    if(piece_bytes EQUAL 0)
      set(piece ${folder})
    endif()
    set_source_files_properties(${files_${folder}} PROPERTIES UNITY_GROUP ${piece})
    math(EXPR piece_bytes "${piece_bytes} + ${bytes_${folder}}")
    if(piece_bytes GREATER 320000)
      set(piece_bytes 0)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A type with members of an unnamed namespace is warned of where the file is not the one that is compiled: here all.
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
endfunction()

# shardwright_library(NAME [OPTIMIZE LEVEL] SOURCES ... [ONCE ...] DEPENDS ...): a static library with alias
# shardwright::NAME, whose headers are included by their path from the top of the repository ("sim/core/base/error.h").
# ONCE: sources of what is done once an answer, compiled with -O1.
function(shardwright_library name)
  cmake_parse_arguments(ARG "" "OPTIMIZE" "SOURCES;ONCE;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(target shardwright_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(shardwright::${name} ALIAS ${target})
  set(parts ${target})
  if(ARG_ONCE)
    add_library(${target}_once OBJECT ${ARG_ONCE})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_once>)
    shardwright_optimize(${target}_once 1)
    list(APPEND parts ${target}_once)
  endif()
  foreach(part IN LISTS parts)
    target_include_directories(${part} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardwright>)
    target_link_libraries(${part} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
    shardwright_warnings(${part})
    shardwright_unity(${part})
  endforeach()
  if(DEFINED ARG_OPTIMIZE)
    shardwright_optimize(${target} ${ARG_OPTIMIZE})
  endif()
endfunction()
