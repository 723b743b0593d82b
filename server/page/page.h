// The page for browsers at "/": the bundle that is built from web/, embedded in the collector.
#ifndef STATCOLLECT_SERVER_PAGE_PAGE_H_
#define STATCOLLECT_SERVER_PAGE_PAGE_H_

#include <span>
#include <string_view>

#include "server/http/exchange.h"

namespace statcollect {

struct PageFile {
  std::string_view path;  // "/", "/assets/app.js"
  std::string_view type;  // "text/javascript; charset=utf-8"
  std::string_view bytes;
};

// All files of the bundle; made by the build from web/dist.
std::span<const PageFile> PageFiles();

// Everything that is not in the bundle's folder is refused.
inline constexpr std::string_view kPagePath = "/", kPageAssetsPrefix = "/assets/";

// Answers GET of the files with an ETag, packed with gzip if the client takes it, and with a strict
// Content-Security-Policy: nothing inline, nothing of another origin. Packs them once, here.
// Thread-safe.
HttpService MakePageService(std::span<const PageFile> files = PageFiles());

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_PAGE_PAGE_H_
