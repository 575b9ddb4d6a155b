# Uses ccache if it is installed and no launcher was chosen.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(PENSTOCK_CCACHE ccache)
  mark_as_advanced(PENSTOCK_CCACHE)
  if(PENSTOCK_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${PENSTOCK_CCACHE})
  endif()
endif()
