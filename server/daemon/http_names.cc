#include "server/daemon/http_names.h"

#include <string>
#include <utility>

#include "tls/authority.h"

namespace statcollect {

ForeignRules MakeForeignRules(const DaemonConfig& config, const tls::Reloader* certificates) {
  ForeignRules rules{.names = config.http_allowed_hosts, .https = certificates != nullptr};
  const auto add = [&rules](const std::string& host) {
    auto parsed = ParseAuthority(host);
    if (parsed) rules.names.insert(std::move(parsed->host));
  };
  for (const std::string& own : tls::OwnHosts()) add(own);
  add(config.listen.host);
  if (config.http) add(config.http->host);
  if (certificates != nullptr)
    rules.certified = [certificates](const std::string& name) {
      return tls::IsFor(*certificates->current(), name);
    };
  return rules;
}

}  // namespace statcollect
