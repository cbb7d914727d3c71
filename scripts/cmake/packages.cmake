# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` and `cpack` take: the program with its data (profiles), completions and man pages; and, as the
# component `dev`, the libraries core, profiles, sim and tuner with their headers for find_package(shardwright).
# Executor and kernels are no library for others.
if(EMSCRIPTEN)
  return()
endif()
include(CMakePackageConfigHelpers)

set(shardwright_libraries core profiles sim tuner)
foreach(library IN LISTS shardwright_libraries)
  set_target_properties(shardwright_${library} PROPERTIES EXPORT_NAME ${library})
  install(TARGETS shardwright_${library} EXPORT shardwright ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
endforeach()
install(DIRECTORY sim profiles tuner DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwright COMPONENT dev
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "data" EXCLUDE)
set(shardwright_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardwright)
install(EXPORT shardwright NAMESPACE shardwright:: FILE shardwrightTargets.cmake DESTINATION ${shardwright_package_dir}
        COMPONENT dev)
configure_package_config_file(scripts/cmake/shardwrightConfig.cmake.in shardwrightConfig.cmake
                              INSTALL_DESTINATION ${shardwright_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(shardwrightConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/shardwrightConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/shardwrightConfigVersion.cmake
        DESTINATION ${shardwright_package_dir} COMPONENT dev)

# The program writes its completions, and scripts/man its pages from its --help: neither can lag behind.
if(NOT CMAKE_CROSSCOMPILING)
  install(CODE "
    set(program \"$<TARGET_FILE:shardwright>\")
    set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    foreach(completion IN ITEMS bash:bash-completion/completions/shardwright zsh:zsh/site-functions/_shardwright
                                fish:fish/vendor_completions.d/shardwright.fish)
      string(REPLACE \":\" \";\" completion \"\${completion}\")
      list(GET completion 0 shell)
      list(GET completion 1 file)
      get_filename_component(folder \"\${prefix}/\${file}\" DIRECTORY)
      file(MAKE_DIRECTORY \"\${folder}\")
      execute_process(COMMAND \"\${program}\" completion \${shell} OUTPUT_FILE \"\${prefix}/\${file}\" RESULT_VARIABLE failed)
      if(failed)
        message(FATAL_ERROR \"\${program} wrote no completion for \${shell}\")
      endif()
      message(STATUS \"Installing: \${prefix}/\${file}\")
    endforeach()
    execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/scripts/man\" \"\${program}\"
                            \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\" RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR \"scripts/man wrote no manual pages\")
    endif()")
endif()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# scripts/deb: the packages shardwright and shardwright-dev.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME shardwright)
set(CPACK_PACKAGE_VENDOR "Shardwright")
set(CPACK_PACKAGE_CONTACT "The Shardwright authors <shardwright@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL Unspecified dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME shardwright)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME shardwright-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libfmt-dev, nlohmann-json3-dev, libeigen3-dev")
include(CPack)
