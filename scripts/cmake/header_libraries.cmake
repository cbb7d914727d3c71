# SPDX-License-Identifier: Apache-2.0
# The planner for machines that this one has no libraries of: WebAssembly, or an older C library. All that the planner
# needs of other libraries is headers; they are linked into a folder of their own, because the rest of /usr/include is
# of this machine's C library. yaml-cpp is compiled from sources, where SHARDWRIGHT_YAML_CPP_SOURCE names them.
set(headers "${CMAKE_BINARY_DIR}/headers")
file(MAKE_DIRECTORY "${headers}")
foreach(package IN ITEMS fmt:fmt/core.h nlohmann:nlohmann/json.hpp CLI:CLI/CLI.hpp eigen3:eigen3/Eigen/Core)
  string(REGEX MATCH "^[^:]+" folder "${package}")
  string(REGEX REPLACE "^[^:]+:" "" header "${package}")
  find_path(HEADERS_OF_${folder} "${header}" PATHS /usr/include /usr/local/include NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  file(CREATE_LINK "${HEADERS_OF_${folder}}/${folder}" "${headers}/${folder}" SYMBOLIC)
endforeach()
foreach(library IN ITEMS fmt::fmt nlohmann_json::nlohmann_json CLI11::CLI11 Eigen3::Eigen)
  add_library(${library} INTERFACE IMPORTED)
  target_include_directories(${library} SYSTEM INTERFACE "${headers}")
endforeach()
target_include_directories(Eigen3::Eigen SYSTEM INTERFACE "${headers}/eigen3")
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)

# TOML and YAML are what import-config reads of other trainers; without them it refuses such files by name.
find_path(HEADERS_OF_toml toml++/toml.h PATHS /usr/include /usr/local/include NO_CMAKE_FIND_ROOT_PATH)
if(HEADERS_OF_toml)
  file(CREATE_LINK "${HEADERS_OF_toml}/toml++" "${headers}/toml++" SYMBOLIC)
  set(SHARDWRIGHT_TOML_INCLUDE_DIR "${headers}" CACHE PATH "Where toml++ is")
endif()
set(SHARDWRIGHT_YAML_CPP_SOURCE "" CACHE PATH "Sources of yaml-cpp 0.7 or later (scripts/common.sh gets them)")
if(SHARDWRIGHT_YAML_CPP_SOURCE)
  file(STRINGS "${SHARDWRIGHT_YAML_CPP_SOURCE}/CMakeLists.txt" line REGEX "project\\(YAML_CPP VERSION" LIMIT_COUNT 1)
  string(REGEX REPLACE ".*VERSION ([0-9.]+).*" "\\1" yaml-cpp_VERSION "${line}")
  file(GLOB yaml_cpp_sources "${SHARDWRIGHT_YAML_CPP_SOURCE}/src/*.cpp")
  add_library(yaml-cpp STATIC EXCLUDE_FROM_ALL ${yaml_cpp_sources})
  target_include_directories(yaml-cpp SYSTEM PUBLIC "${SHARDWRIGHT_YAML_CPP_SOURCE}/include")
  set_target_properties(yaml-cpp PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0 POSITION_INDEPENDENT_CODE ON
                                            CXX_STANDARD 20 CXX_VISIBILITY_PRESET hidden)
  set(yaml-cpp_FOUND TRUE)
endif()
