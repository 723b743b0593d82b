# Apache Arrow and Parquet for C++, for `statctl export parquet`: from the pip package pyarrow in .venv, which carries headers and
# libraries (docs/decisions/0013-parquet-module.md). Sets STATCOLLECT_HAVE_PARQUET and, if true, defines statcollect_arrow.
option(STATCOLLECT_PARQUET "Build the Parquet module where Apache Arrow is found" ON)
set(STATCOLLECT_HAVE_PARQUET OFF)

if(STATCOLLECT_PARQUET AND NOT STATCOLLECT_SANITIZE)
  set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  if(EXISTS ${python})
    execute_process(
      COMMAND ${python} -c "import glob, os, pyarrow
folder = os.path.dirname(os.path.realpath(pyarrow.__file__))
arrow = sorted(glob.glob(folder + '/libarrow.so.*'))
parquet = sorted(glob.glob(folder + '/libparquet.so.*'))
if arrow and parquet and os.path.isdir(folder + '/include/parquet'): print(folder + '/include', arrow[0], parquet[0], sep=';')"
      OUTPUT_VARIABLE found ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(found)
      list(GET found 0 include)
      list(GET found 1 arrow)
      list(GET found 2 parquet)
      add_library(statcollect_arrow INTERFACE)
      target_include_directories(statcollect_arrow SYSTEM INTERFACE ${include})
      target_link_libraries(statcollect_arrow INTERFACE ${parquet} ${arrow})
      set(STATCOLLECT_HAVE_PARQUET ON)
    endif()
  endif()
endif()
if(STATCOLLECT_HAVE_PARQUET)
  message(STATUS "Parquet: Apache Arrow of ${include}")
else()
  message(STATUS "Parquet: Apache Arrow is not there (pip package pyarrow in .venv); statctl cannot export parquet")
endif()
