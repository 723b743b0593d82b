# cmake -D IN=query.desc -D OUT=descriptor_set.cc -P EmbedDescriptorSet.cmake: a file's bytes as C++.
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n  " bytes "${bytes}")
file(WRITE "${OUT}" "#include \"proto/descriptor_set.h\"

#include <cstddef>

namespace statcollect {
namespace {

constexpr unsigned char kBytes[] = {
  ${bytes}
};

}  // namespace

std::string_view DescriptorSetBytes() { return {reinterpret_cast<const char*>(kBytes), sizeof kBytes}; }

}  // namespace statcollect
")
