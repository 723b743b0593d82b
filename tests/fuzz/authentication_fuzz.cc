// What somebody sends before anybody knows who it is: fields with a token, a project, a
// certificate; and the files and flags that say who may do what. Nothing of it may be taken for a
// token, and what is read must be read again from its own text.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <openssl/x509.h>

#include "common/clock.h"
#include "common/project.h"
#include "server/access/access.h"
#include "server/access/grants.h"
#include "server/access/token.h"
#include "server/access/token_file.h"
#include "tls/openssl.h"
#include "tls/peer_names.h"

namespace {

using statcollect::access::AccessControl;
using statcollect::access::AuditLog;

void Require(bool holds) {
  if (!holds) std::abort();
}

// A file with the hash of one token, which no input is.
std::string TokenFile() {
  static const int file = memfd_create("tokens", 0);
  statcollect::access::TokenRecords records;
  records["0123456789ab"] = {
      .digest = statcollect::access::DigestOf("stc_0123456789ab_" + std::string(64, 'a')),
      .scopes = statcollect::access::ParseScopes("read,ingest").value()};
  const std::string text = statcollect::access::FormatTokens(records);
  Require(fchmod(file, 0600) == 0 &&
          write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  return "/proc/self/fd/" + std::to_string(file);
}

void TryCheck(const std::string& text) {
  static const statcollect::SystemClock clock;
  static AuditLog audit("/nowhere/audit.jsonl", clock, [](const std::string&) {});
  static const auto access =
      AccessControl::Open({.token_file = TokenFile(),
                           .required = true,
                           .certificates = *statcollect::access::ParseGrants({"rank7=ingest"}),
                           .log = [](const std::string&) {}},
                          clock, audit);
  Require(access.ok());
  const std::string method = "/statcollect.v1.Query/Diff";
  const std::string bearer = "Bearer " + text;
  for (const std::string& field : {text, bearer}) {
    const auto checked =
        (*access)->Check({.authorization = {field}, .method = method, .address = text});
    Require(!checked.ok() && !checked.status().message().empty());
  }
  Require(
      !(*access)
           ->Check({.authorization = {}, .method = method, .address = "x", .certificate = {text}})
           .ok());
  Require(
      !(*access)
           ->Check(
               {.authorization = {text, text}, .method = text, .address = "x", .project = {text}})
           .ok());
  const auto open = (*access)->Check(
      {.authorization = {}, .method = "/healthz", .address = "x", .project = {text}});
  Require(open.ok() == statcollect::ValidateProjectName(text).ok());
}

void TryFiles(const std::string& text) {
  if (const auto records = statcollect::access::ParseTokens(text); records.ok()) {
    const std::string again = statcollect::access::FormatTokens(*records);
    const auto read = statcollect::access::ParseTokens(again);
    Require(read.ok() && statcollect::access::FormatTokens(*read) == again);
  }
  (void)statcollect::access::ParseGrants({text});
  (void)statcollect::access::ParseScopes(text);
}

void TryCertificate(const std::uint8_t* data, std::size_t size) {
  const unsigned char* at = data;
  const statcollect::tls::CertificatePointer certificate(
      d2i_X509(nullptr, &at, static_cast<long>(size)));
  if (certificate == nullptr) return;
  for (const std::string& name : statcollect::tls::NamesOf(certificate.get())) {
    Require(!name.empty());
    for (const char c : name) Require(c > ' ' && c < 0x7f);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  TryCheck(text);
  TryFiles(text);
  TryCertificate(data, size);
  return 0;
}
