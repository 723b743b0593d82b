# Helpers for the project's own targets: one place for warnings, sanitizers, visibility and include paths.

function(statcollect_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false alarms on std::string's operator+ at -O3
  endif()
  if(STATCOLLECT_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

if(STATCOLLECT_SANITIZE)
  add_compile_options(-fsanitize=${STATCOLLECT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${STATCOLLECT_SANITIZE})
  if(STATCOLLECT_SANITIZE STREQUAL "thread")
    add_compile_options(-Wno-tsan)  # fences, which it does not model, stand only where a GPU is the other side
  endif()
endif()

# Compiles a target's sources several at a time (unity build): most of a file's time goes to its headers. A source with compile options
# of its own stays alone, and so do generated ones. The preset dev compiles each file by itself, so that each names the headers it needs.
# CMake's own UNITY_BUILD writes absolute paths into its units, which ccache cannot share between clones.
option(STATCOLLECT_UNITY "Compile several sources at a time" ON)
set(STATCOLLECT_UNITY_BATCH 8 CACHE STRING "Number of sources compiled at a time")
function(statcollect_unity target)
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES STATCOLLECT_SOURCES "${sources}")  # without the units
  if(STATCOLLECT_UNITY)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC takes the sources of a unit for headers, in which no type may use an anonymous namespace.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
    # At the folder's end, when all sources have their properties.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL statcollect_write_units ${target})")
  endif()
endfunction()

# Keeps sources out of units: their helpers have the names of another's.
function(statcollect_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES STATCOLLECT_ALONE ON)
endfunction()

function(statcollect_write_units target)
  get_target_property(sources ${target} STATCOLLECT_SOURCES)
  set(includes)
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${path})
    file(RELATIVE_PATH in_build ${PROJECT_BINARY_DIR} ${path})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(alone ${source} STATCOLLECT_ALONE)
    if(path MATCHES "\\.cc$" AND in_build MATCHES "^\\.\\./" AND NOT options AND NOT definitions AND NOT alone)
      list(APPEND includes ${relative})
      set_source_files_properties(${source} PROPERTIES HEADER_FILE_ONLY ON)
    endif()
  endforeach()
  set(number 0)
  while(includes)
    list(SUBLIST includes 0 ${STATCOLLECT_UNITY_BATCH} unit)
    list(REMOVE_ITEM includes ${unit})
    list(TRANSFORM unit REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN unit "" content)
    set(file ${PROJECT_BINARY_DIR}/units/${target}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${content}" @ONLY)  # written only if it has changed
    target_sources(${target} PRIVATE ${file})
    math(EXPR number "${number} + 1")
  endwhile()
endfunction()

# statcollect_library(NAME sources... [DEPS libraries...]): static, position-independent, hidden symbols. Includes are written from
# the repository's root ("common/status.h").
function(statcollect_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  statcollect_compile_options(${name})
  statcollect_unity(${name})
endfunction()

# statcollect_executable(NAME sources... [DEPS libraries...])
function(statcollect_executable name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  statcollect_compile_options(${name})
  statcollect_unity(${name})
endfunction()

# statcollect_test(NAME sources... [DEPS libraries...] [SHARDS n] [COST seconds]): a GoogleTest program, which ctest runs as one test, or
# as n that take turns at its cases. One case: <build>/tests/NAME --gtest_filter=Suite.Case. ctest starts those of the highest cost first.
# In a release build what is tested is optimized as shipped, the tests themselves are not: that took longer than to compile everything else.
# A test whose helpers have the names of another's is compiled alone: statcollect_compile_alone(source...).
function(statcollect_test name)
  cmake_parse_arguments(ARG "" "SHARDS;COST" "DEPS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  statcollect_unity(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  statcollect_compile_options(${name})
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 1)
  endif()
  set(timeout 600)
  if(STATCOLLECT_SANITIZE)
    set(timeout 1800)
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(ARG_SHARDS GREATER 1)
      math(EXPR number "${shard} + 1")
      set(test ${name}.${number}_of_${ARG_SHARDS})
    endif()
    add_test(NAME ${test} COMMAND ${name})
    # Skipped: where every case was, and none failed, which would be listed after them.
    set_tests_properties(${test} PROPERTIES TIMEOUT ${timeout} COST ${ARG_COST}
      SKIP_REGULAR_EXPRESSION "PASSED  \\] 0 tests\\.[^a-z]*SKIPPED [^\n]*listed below:\n(\\[  SKIPPED [^\n]*\n)*$"
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# add_subdirectory for parts that a source tree may lack (a release tarball without tests, say).
function(statcollect_add_subdirectories)
  foreach(dir ${ARGN})
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/CMakeLists.txt)
      add_subdirectory(${dir})
    endif()
  endforeach()
endfunction()
