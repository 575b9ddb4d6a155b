# The library and the command of the build in PENSTOCK_BUILT, which used the packages of the system.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
load_cache(${PENSTOCK_BUILT} READ_WITH_PREFIX penstock_built_
  CMAKE_PROJECT_VERSION PENSTOCK_JPEG_LIBRARY PENSTOCK_PNG_LIBRARY PENSTOCK_WEBP_LIBRARY)
set(penstock_version ${penstock_built_CMAKE_PROJECT_VERSION})

add_library(penstock::penstock STATIC IMPORTED)
set_target_properties(penstock::penstock PROPERTIES
  IMPORTED_LOCATION ${PENSTOCK_BUILT}/src/libpenstock.a
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/../include
  INTERFACE_LINK_LIBRARIES "Threads::Threads;fmt::fmt;ZLIB::ZLIB;${CMAKE_DL_LIBS}")
foreach(format JPEG PNG WEBP)
  if(penstock_built_PENSTOCK_${format}_LIBRARY)
    target_link_libraries(penstock::penstock INTERFACE ${penstock_built_PENSTOCK_${format}_LIBRARY})
  endif()
endforeach()
# The command, the doctor in it, and what both share.
foreach(part cli:command doctor:doctor cli/shared:cli_shared)
  string(REPLACE : ";" part ${part})
  list(GET part 0 folder)
  list(GET part 1 name)
  add_library(penstock_${name} STATIC IMPORTED)
  set_target_properties(penstock_${name} PROPERTIES IMPORTED_LOCATION ${PENSTOCK_BUILT}/${folder}/libpenstock_${name}.a)
endforeach()
target_include_directories(penstock_command INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/../cli)
target_link_libraries(penstock_command INTERFACE penstock_doctor)
target_link_libraries(penstock_doctor INTERFACE penstock_cli_shared)
target_link_libraries(penstock_cli_shared INTERFACE penstock::penstock)
