# SPDX-License-Identifier: Apache-2.0
# The planner for machines that this one has no libraries of: WebAssembly, or an older C library. All that the planner
# needs of other libraries is headers; they are linked into a folder of their own, because the rest of /usr/include is
# of this machine's C library.
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
