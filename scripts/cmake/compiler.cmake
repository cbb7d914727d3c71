# Language level, warnings and sanitizers shared by every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

if(SHARDWRIGHT_SANITIZE)
  add_compile_options(-fsanitize=${SHARDWRIGHT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${SHARDWRIGHT_SANITIZE})
endif()

# shardwright_warnings(TARGET): the warning set of the house rules.
function(shardwright_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SHARDWRIGHT_WERROR}>>:-Werror>)
endfunction()

# shardwright_library(NAME SOURCES ... DEPENDS ...): a static library with alias shardwright::NAME,
# whose headers are included by their path from the top of the repository ("sim/core/error.h").
function(shardwright_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(shardwright_${name} STATIC ${ARG_SOURCES})
  add_library(shardwright::${name} ALIAS shardwright_${name})
  set_target_properties(shardwright_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(shardwright_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/shardwright>)
  target_link_libraries(shardwright_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
  shardwright_warnings(shardwright_${name})
endfunction()
