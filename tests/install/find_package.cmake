# cmake -DBUILD=... (a finished build) -DWORK=... -DCXX=... -DGENERATOR=... -DVERSION=... -P find_package.cmake
# With -DSOURCE=... -DPYTHON=... and -DOPTIONS=..., those of the finished build: its objects become a shared library first.
set(prefix ${WORK}/prefix)
file(REMOVE_RECURSE ${prefix} ${WORK}/outside)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(SOURCE)
  set(launcher ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/take_object.py ${BUILD} ${WORK}/build)
  list(JOIN launcher "\\;" launcher)
  set(BUILD ${WORK}/build)
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX} ${OPTIONS}
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}" -DBUILD_SHARED_LIBS=ON -DPENSTOCK_BUILD_TESTS=OFF
    -DPENSTOCK_BUILD_BENCHMARKS=OFF)
  run(${CMAKE_COMMAND} --build ${BUILD} --parallel 2)
endif()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/outside -B ${WORK}/outside -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix} -DPENSTOCK_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK}/outside)
run(${WORK}/outside/outside)
if(EXISTS ${prefix}/bin/penstock)
  run(${prefix}/bin/penstock --version)
endif()
