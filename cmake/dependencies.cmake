# Found once for the library, the command, the tests and the benchmarks; each of those finds what it alone needs.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(ZLIB REQUIRED)
