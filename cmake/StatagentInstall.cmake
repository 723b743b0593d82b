# Installs the agent for other projects: library, headers, find_package(statagent) and pkg-config.
include(CMakePackageConfigHelpers)

function(statagent_install target)
  install(TARGETS ${target} EXPORT statagentTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT agent)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/agent/include/statagent ${PROJECT_BINARY_DIR}/include/statagent
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT agent FILES_MATCHING PATTERN "*.h")

  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/statagent)
  install(EXPORT statagentTargets NAMESPACE statagent:: DESTINATION ${package_dir} COMPONENT agent)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/statagentConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/statagentConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/statagentConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/statagentConfig.cmake ${PROJECT_BINARY_DIR}/statagentConfigVersion.cmake
          DESTINATION ${package_dir} COMPONENT agent)

  # From the file's own place, so that the installation can be moved.
  file(RELATIVE_PATH STATAGENT_PC_TO_PREFIX ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/statagent.pc.in ${PROJECT_BINARY_DIR}/statagent.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/statagent.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT agent)
endfunction()
