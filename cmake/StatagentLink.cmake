# How libstatagent.so is linked. It lives in processes that bring a gRPC of their own (pip's grpcio), so gRPC is linked statically and
# hidden; protobuf is not used at all (agent/export/wire.h). Abseil, RE2, c-ares and OpenSSL stay shared: their archives in Debian
# are not position independent, and their symbols carry versions or an inline namespace of their own.

# The shared libraries that the static gRPC needs.
function(statagent_static_grpc_dependencies out)
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --static --libs grpc++ OUTPUT_VARIABLE flags
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCHALL "-labsl_[a-z0-9_]+" abseil "${flags}")
  list(REMOVE_DUPLICATES abseil)
  set(${out} ${abseil} -lre2 -lcares -lssl -lcrypto -lz -lpthread -ldl -lrt -latomic PARENT_SCOPE)
endfunction()

set(STATAGENT_GRPC_ARCHIVES
    -Wl,-Bstatic -Wl,--start-group -lgrpc++ -lgrpc -lgpr -laddress_sorting -lupb -Wl,--end-group
    -Wl,-Bdynamic -Wl,--as-needed)

# Sets STATAGENT_STATIC_GRPC: whether a shared library can be linked from the static gRPC.
function(statagent_check_static_grpc)
  if(DEFINED STATAGENT_STATIC_GRPC)
    return()
  endif()
  set(result OFF)
  if(NOT STATCOLLECT_SANITIZE)
    set(dir ${PROJECT_BINARY_DIR}/check_static_grpc)
    file(WRITE ${dir}/check.cc
      "#include <grpcpp/grpcpp.h>\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) bool statagent_check() {\n"
      "  auto channel = grpc::CreateChannel(\"127.0.0.1:1\", grpc::InsecureChannelCredentials());\n"
      "  return channel != nullptr;\n}\n")
    statagent_static_grpc_dependencies(dependencies)
    execute_process(
      COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fPIC -fvisibility=hidden -shared ${dir}/check.cc -o ${dir}/libcheck.so
              -Wl,--exclude-libs,ALL -Wl,-z,defs ${STATAGENT_GRPC_ARCHIVES} ${dependencies}
      RESULT_VARIABLE failed OUTPUT_VARIABLE log ERROR_VARIABLE log)
    file(REMOVE ${dir}/libcheck.so)
    if(failed)
      message(WARNING "libstatagent.so: the static gRPC does not link here, so it will use the shared one and may clash "
                      "with another gRPC in the same process. The linker said:\n${log}")
    else()
      set(result ON)
    endif()
  endif()
  set(STATAGENT_STATIC_GRPC ${result} CACHE BOOL "Link gRPC into libstatagent.so statically")
endfunction()

function(statagent_link target)
  set(map ${PROJECT_SOURCE_DIR}/agent/statagent.map)
  set(archives statcollect_grpc_exporter statcollect_tls statcollect_export statcollect_staging statcollect_cuda statcollect_cuda_plan
               statcollect_stats statcollect_common)
  set(files)
  foreach(archive ${archives})
    list(APPEND files $<TARGET_FILE:${archive}>)
  endforeach()
  add_dependencies(${target} ${archives})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS "${map};${files}" VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_options(${target} PRIVATE -Wl,--version-script=${map} -Wl,--gc-sections -Wl,--exclude-libs,ALL
                      -Wl,-z,nodelete)
  target_link_libraries(${target} PRIVATE -Wl,--start-group ${files} -Wl,--end-group)
  if(STATCOLLECT_HAS_CUDA)
    # The static runtime looks for the driver itself, when it is first used.
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
  if(STATAGENT_STATIC_GRPC)
    statagent_static_grpc_dependencies(dependencies)
    target_link_libraries(${target} PRIVATE ${STATAGENT_GRPC_ARCHIVES} ${dependencies})
  else()
    target_link_libraries(${target} PRIVATE PkgConfig::GRPCPP OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
  endif()
endfunction()
