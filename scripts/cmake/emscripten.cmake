# SPDX-License-Identifier: Apache-2.0
# The planner as WebAssembly, for the page that scripts/planner writes. Debian has no libraries for that machine, but
# all that the planner needs of them is headers: they are linked into a folder of their own, because the rest of
# /usr/include is of another C library.
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

# Exceptions of the machine itself: smaller and faster than calls through JavaScript. No signals, no threads.
add_compile_options(-fwasm-exceptions)
add_link_options(-fwasm-exceptions)
