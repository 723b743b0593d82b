# cmake -D DIR=web/dist/page -D OUT=page_files.cc -P EmbedPage.cmake: the files of the page's bundle as C++.
file(GLOB_RECURSE files RELATIVE "${DIR}" "${DIR}/*")
list(SORT files)
set(arrays "")
set(entries "")
set(number 0)
foreach(file ${files})
  if(file MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(file MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(file MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(file MATCHES "\\.svg$")
    set(type "image/svg+xml")
  else()
    message(FATAL_ERROR "embed the page: found ${DIR}/${file}; expected .html, .js, .css or .svg; teach cmake/EmbedPage.cmake its type")
  endif()
  set(path "/${file}")
  if(file STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ "${DIR}/${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n  " bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {\n  ${bytes}\n};\n")
  string(APPEND entries "    {\"${path}\", \"${type}\", {reinterpret_cast<const char*>(kFile${number}), sizeof kFile${number}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
if(number EQUAL 0)
  message(FATAL_ERROR "embed the page: found no file in ${DIR}; expected the committed bundle; build it with scripts/web.sh build")
endif()
file(WRITE "${OUT}" "#include \"server/page/page.h\"

namespace statcollect {
namespace {

${arrays}
}  // namespace

std::span<const PageFile> PageFiles() {
  static const PageFile kFiles[] = {
${entries}  };
  return kFiles;
}

}  // namespace statcollect
")
