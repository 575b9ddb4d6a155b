# `cmake --install` gives the library, its headers, the command with the schemas of its JSON, and what
# find_package(penstock) needs.
include(CMakePackageConfigHelpers)
set(penstock_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)

install(TARGETS penstock EXPORT penstock_targets)
install(DIRECTORY include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.hpp)
install(EXPORT penstock_targets NAMESPACE penstock:: FILE penstockTargets.cmake DESTINATION ${penstock_package_dir})

get_target_property(penstock_library_type penstock TYPE)
configure_package_config_file(cmake/penstockConfig.cmake.in ${PROJECT_BINARY_DIR}/penstockConfig.cmake
  INSTALL_DESTINATION ${penstock_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/penstockConfig.cmake ${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake
  DESTINATION ${penstock_package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/schemas DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(TARGET penstock_cli AND penstock_library_type STREQUAL "SHARED_LIBRARY")
  set_target_properties(penstock_cli PROPERTIES INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()
