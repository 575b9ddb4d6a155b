# Uses ccache where it is installed and nobody chose a launcher.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(PENSTOCK_CCACHE ccache)
  mark_as_advanced(PENSTOCK_CCACHE)
  if(PENSTOCK_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${PENSTOCK_CCACHE})
  endif()
endif()
