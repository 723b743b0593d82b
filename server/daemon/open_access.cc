#include "server/daemon/open_access.h"

#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/names.h"
#include "server/store/format_file.h"
#include "server/store/rocksdb/rocksdb_store.h"

namespace statcollect {
namespace {

Status Remember(const std::string& data_dir, bool tokens) {
  return SetFormatWord(data_dir, kStoreFormatVersion, kTokensWord, tokens);
}

Status NoTokens(const DaemonConfig& config) {
  const std::string data_dir = Printable(config.data_dir);
  return {Code::kFailedPrecondition,
          "start: the store in '" + data_dir +
              "' was used with tokens, and there is no file of tokens at '" +
              Printable(config.TokenPath()) +
              "'; without one, everybody who reaches the collector could read and delete "
              "everything. Copy the file back, name it with --token-file, or make a new token: "
              "statcollectord token create --data-dir " +
              data_dir + " --scope admin" +
              (config.restore_from.empty()
                   ? ""
                   : "; the checkpoint has been restored, so then start without --restore-from") +
              ". To serve without tokens from now on: --no-tokens"};
}

}  // namespace

Result<std::unique_ptr<access::AccessControl>> OpenAccess(const DaemonConfig& config,
                                                          const Clock& clock,
                                                          access::AuditLog& audit) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto grants, access::ParseGrants(config.tls_principals));
  const auto found = [data_dir = config.data_dir] {
    const Status remembered = Remember(data_dir, true);
    if (!remembered.ok()) spdlog::warn("tokens: {}", remembered.message());
  };
  auto access =
      access::AccessControl::Open({.token_file = config.TokenPath(),
                                   .required = !config.token_file.empty(),
                                   .certificates = std::move(grants),
                                   .log = [](const std::string& line) { spdlog::warn("{}", line); },
                                   .tokens_found = found},
                                  clock, audit);
  if (!access.ok() || (*access)->on() || !FormatFileSays(config.data_dir, kTokensWord))
    return access;
  if (!config.no_tokens) return NoTokens(config);
  spdlog::warn(
      "--no-tokens: the store was used with tokens, and everybody who reaches the collector is let "
      "in now");
  STATCOLLECT_RETURN_IF_ERROR(Remember(config.data_dir, false));
  return access;
}

}  // namespace statcollect
