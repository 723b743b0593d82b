# cmake -D IN=file -D OUT=file.cc -D HEADER=client/x.h -D NAMESPACE=a::b -D FUNCTION=Name -P EmbedFile.cmake: a file's bytes as C++,
# returned by a function that the header declares: std::string_view Name().
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n  " bytes "${bytes}")
file(WRITE "${OUT}" "#include \"${HEADER}\"

#include <string_view>

namespace ${NAMESPACE} {
namespace {

constexpr unsigned char k${FUNCTION}Bytes[] = {
  ${bytes}
};

}  // namespace

std::string_view ${FUNCTION}() {
  return {reinterpret_cast<const char*>(k${FUNCTION}Bytes), sizeof k${FUNCTION}Bytes};
}

}  // namespace ${NAMESPACE}
")
