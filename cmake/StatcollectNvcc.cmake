# Which CUDA compiler to use, if the user names none. Works in scripts (cmake -P), too.
#
# A build runs with drivers of its toolkit's major version or newer: 525 for CUDA 12, 580 for CUDA 13. A release therefore takes the
# oldest toolkit that can compile it, other builds the one that scripts/setup.sh --for cuda has installed from pip, so that they find
# what torch brought.
set(STATCOLLECT_NVCC_OLDEST 12.8)

# nvcc's version, or nothing if it does not run.
function(statcollect_nvcc_version nvcc result)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failed)
  set(version "")
  if(NOT failed AND said MATCHES "release ([0-9]+\\.[0-9]+)")
    set(version ${CMAKE_MATCH_1})
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# statcollect_choose_nvcc(RESULT nvcc...): the one of the oldest version that is new enough, or nothing.
function(statcollect_choose_nvcc result)
  set(chosen "")
  set(chosen_version "")
  foreach(nvcc ${ARGN})
    statcollect_nvcc_version(${nvcc} version)
    if(version STREQUAL "" OR version VERSION_LESS STATCOLLECT_NVCC_OLDEST)
      continue()
    endif()
    if(chosen STREQUAL "" OR version VERSION_LESS chosen_version)
      set(chosen ${nvcc})
      set(chosen_version ${version})
    endif()
  endforeach()
  set(${result} "${chosen}" PARENT_SCOPE)
endfunction()
