#include "server/access/grants.h"

#include "common/names.h"
#include "common/project.h"

namespace statcollect::access {
namespace {

constexpr std::size_t kCertificateNameBytesMax = 256;

Status ParseGrant(const std::string& text, Grants* grants) {
  const auto bad = [&](const std::string& found) {
    return Status(Code::kInvalidArgument,
                  "--tls-principal '" + Printable(text) + "': " + found +
                      "; expected NAME=SCOPES or NAME=SCOPES@PROJECT with a name in a client's "
                      "certificate, such as rank7.gpu.example=ingest,read@vision");
  };
  const std::size_t equals = text.rfind('=');  // names that are URIs may have one
  if (equals == std::string::npos || equals == 0) return bad("found no NAME=");
  const std::string name = text.substr(0, equals);
  if (name.size() > kCertificateNameBytesMax || !ValidateTensorName("name", name).ok())
    return bad("the name is longer than 256 bytes, or not printable");
  std::string scopes = text.substr(equals + 1);
  Grant grant;
  if (const std::size_t at = scopes.find('@'); at != std::string::npos) {
    grant.project = scopes.substr(at + 1);
    scopes.resize(at);
    if (const Status named = ValidateProjectName(grant.project); !named.ok())
      return bad(named.message());
  }
  const auto parsed = ParseScopes(scopes);
  if (!parsed.ok()) return bad(parsed.status().message());
  grant.scopes = *parsed;
  if (!grants->emplace(name, grant).second) return bad("the name is there twice");
  return Status::Ok();
}

}  // namespace

Result<Grants> ParseGrants(const std::vector<std::string>& texts) {
  Grants grants;
  if (texts.size() > kGrantsMax) {
    return Status(Code::kInvalidArgument, "--tls-principal: found " + std::to_string(texts.size()) +
                                              " of them; expected at most " +
                                              std::to_string(kGrantsMax));
  }
  for (const std::string& text : texts) STATCOLLECT_RETURN_IF_ERROR(ParseGrant(text, &grants));
  return grants;
}

}  // namespace statcollect::access
