# Found once for the library, the command, the tests and the benchmarks; each of those finds what it alone needs.
list(PREPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Hwloc REQUIRED)
find_package(ZLIB REQUIRED)
