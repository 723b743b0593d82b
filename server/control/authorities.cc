#include "server/control/authorities.h"

#include <curl/curl.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace statcollect {
namespace {

// What this libcurl was built with, or "".
std::string BuiltIn() {
  const curl_version_info_data* const version = curl_version_info(CURLVERSION_NOW);
  if (version->age < CURLVERSION_SEVENTH || version->cainfo == nullptr) return "";
  return version->cainfo;
}

}  // namespace

std::string FirstFile(std::span<const std::string> files) {
  for (const std::string& file : files) {
    std::error_code ignored;
    if (!file.empty() && std::filesystem::is_regular_file(file, ignored)) return file;
  }
  return "";
}

std::string SystemAuthorities() {
  // As OpenSSL's and curl's command lines do: what is named is used, even if it is not there, so
  // that the error names it.
  if (const char* named = std::getenv("SSL_CERT_FILE"); named != nullptr && *named != '\0')
    return named;
  const std::vector<std::string> files = {
      BuiltIn(),
      "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
      "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, Red Hat, Rocky
      "/etc/pki/tls/certs/ca-bundle.crt",                   // their older releases
      "/var/lib/ca-certificates/ca-bundle.pem",             // SUSE
      "/etc/ssl/cert.pem",                                  // Alpine with glibc, NixOS images
  };
  return FirstFile(files);
}

}  // namespace statcollect
