# The library and the command of the build in PENSTOCK_BUILT, which used the packages of the system.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
load_cache(${PENSTOCK_BUILT} READ_WITH_PREFIX penstock_built_ CMAKE_PROJECT_VERSION)
set(penstock_version ${penstock_built_CMAKE_PROJECT_VERSION})

add_library(penstock::penstock STATIC IMPORTED)
set_target_properties(penstock::penstock PROPERTIES
  IMPORTED_LOCATION ${PENSTOCK_BUILT}/src/libpenstock.a
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/../include
  INTERFACE_LINK_LIBRARIES "Threads::Threads;fmt::fmt;ZLIB::ZLIB;${CMAKE_DL_LIBS}")
add_library(penstock_command STATIC IMPORTED)
set_target_properties(penstock_command PROPERTIES
  IMPORTED_LOCATION ${PENSTOCK_BUILT}/cli/libpenstock_command.a
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/../cli
  INTERFACE_LINK_LIBRARIES penstock::penstock)
