#include "server/daemon/certificates.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "common/clock.h"
#include "common/unix_address.h"
#include "server/access/token.h"
#include "server/access/token_file.h"
#include "server/daemon/say_error.h"
#include "tls/authority.h"

namespace statcollect {
namespace {

// What --tls-auto makes for clients, beside the certificates.
struct AutoFiles {
  explicit AutoFiles(const DaemonConfig& config)
      : folder(std::filesystem::absolute(std::filesystem::path(config.data_dir) / "tls")
                   .lexically_normal()
                   .string()),
        certificates(tls::FilesIn(folder)),
        agents_token(folder + "/agents.token"),
        statctl_token(folder + "/statctl.token") {}
  std::string folder;
  tls::AuthorityFiles certificates;
  std::string agents_token, statctl_token;
};

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool IsAnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

// An address that means "all of this machine" is no name for it.
std::vector<std::string> HostsOf(const DaemonConfig& config) {
  std::vector<std::string> hosts = tls::OwnHosts();
  for (const std::string& host :
       {config.listen.host, config.http ? config.http->host : std::string()}) {
    if (!host.empty() && !IsAnyAddress(host) &&
        std::find(hosts.begin(), hosts.end(), host) == hosts.end())
      hosts.push_back(host);
  }
  return hosts;
}

// A token in a file of its own; its record is kept once the file is written.
Status MakeToken(const std::string& path, const char* scopes, access::TokenRecords& records) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto token, access::MakeToken());
  records[std::string(*access::TokenId(token))] = {
      .digest = access::DigestOf(token),
      .scopes = access::ParseScopes(scopes).value(),
      .created = SystemClock().UnixNanos() / 1'000'000'000,
      .expires = {},
      .revoked = {}};
  return tls::ReplaceFile(path, token + "\n", 0600);
}

Status MakeTokens(const DaemonConfig& config, const AutoFiles& files) {
  return access::ChangeTokens(config.TokenPath(), [&](access::TokenRecords& records) -> Status {
    STATCOLLECT_RETURN_IF_ERROR(MakeToken(files.agents_token, "ingest", records));
    return MakeToken(files.statctl_token, "read,capture,control,delete", records);
  });
}

// The line that sets a client's variables.
std::string VariablesLine(const std::string& prefix, const std::string& collector,
                          const tls::AuthorityFiles& files, bool mutual,
                          const std::string& token_file) {
  std::string line =
      "  export " + prefix + "_COLLECTOR=" + collector + ' ' + prefix + "_TLS_CA=" + files.ca;
  if (mutual)
    line += ' ' + prefix + "_TLS_CERT=" + files.client_certificate + ' ' + prefix +
            "_TLS_KEY=" + files.client_key;
  if (!token_file.empty()) line += ' ' + prefix + "_TOKEN_FILE=" + token_file;
  return line + '\n';
}

// The first name that other machines may know; behind the three of the loopback interface.
std::string NameForClients(const Endpoint& listen) {
  if (!IsAnyAddress(listen.host)) return listen.ToString();
  const auto hosts = tls::OwnHosts();
  return Endpoint{.host = hosts.size() > 3 ? hosts[3] : "127.0.0.1", .port = listen.port}
      .ToString();
}

}  // namespace

Result<std::unique_ptr<tls::Reloader>> OpenCertificates(const DaemonConfig& config) {
  tls::Files files = config.tls;
  if (config.tls_auto) {
    const AutoFiles own(config);
    files.certificate = own.certificates.certificate;
    files.key = own.certificates.key;
    if (!Exists(files.certificate)) {
      STATCOLLECT_RETURN_IF_ERROR(tls::MakeCertificates(own.folder, {.hosts = HostsOf(config)}));
      spdlog::info("TLS: made an authority and certificates in {}", own.folder);
    }
    if (!Exists(config.TokenPath())) {
      STATCOLLECT_RETURN_IF_ERROR(MakeTokens(config, own));
      spdlog::info("made two tokens in {}", own.folder);
    }
  }
  if (files.certificate.empty()) return std::unique_ptr<tls::Reloader>();
  return tls::Reloader::Start(files, kTlsFlags,
                              {.log = [](const std::string& line) { spdlog::warn("{}", line); }});
}

void PrintClientVariables(const DaemonConfig& config, const Endpoint* listen) {
  if (!config.tls_auto) return;
  const AutoFiles own(config);
  const bool mutual = !config.tls.authorities.empty();
  const std::string address =
      listen != nullptr ? NameForClients(*listen) : std::string(kUnixScheme) + config.socket.path;
  const auto line = [&](const char* prefix, const std::string& token) {
    return VariablesLine(prefix, address, own.certificates, mutual, Exists(token) ? token : "");
  };
  std::string text = "Ranks need these variables, and on other machines copies of the files:\n" +
                     line("STATAGENT", own.agents_token) + "statctl needs:\n" +
                     line("STATCTL", own.statctl_token);
  if (!Exists(own.agents_token))
    text += "and tokens; statcollectord token create makes more of them.\n";
  std::fputs(text.c_str(),
             stderr);  // one write: other output of a terminal must not land inside of a line
}

int RunTlsCommand(int argc, const char* const* argv) {
  CLI::App app("Certificates for the collector", "statcollectord tls");
  app.require_subcommand(1);
  CLI::App* init = app.add_subcommand("init",
                                      "Makes a private authority and certificates that it signed, "
                                      "or new ones of an authority that is there");
  std::string directory;
  std::vector<std::string> hosts;
  init->add_option("DIR", directory, "Folder for the files; made if missing")->required();
  init->add_option("--host", hosts,
                   "Name or address of the collector; may be repeated (default: this machine's)")
      ->allow_extra_args(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    SayError("statcollectord tls",
             std::string(error.what()) + "; see statcollectord tls init --help");
    return 2;
  }
  const bool named = !hosts.empty();
  if (!named) hosts = tls::OwnHosts();
  directory = std::filesystem::absolute(directory).string();
  if (const Status made = tls::MakeCertificates(directory, {.hosts = hosts}); !made.ok()) {
    SayError("statcollectord tls", made.message());
    return 2;
  }
  const tls::AuthorityFiles files = tls::FilesIn(directory);
  const std::string address =
      named ? Endpoint{.host = hosts.front(), .port = DaemonConfig().listen.port}.ToString()
            : NameForClients({.host = "0.0.0.0", .port = DaemonConfig().listen.port});
  std::printf("The collector, which then asks its clients for certificates:\n");
  std::printf(
      "  statcollectord --listen 0.0.0.0:%u --tls-cert %s --tls-key %s --tls-client-ca %s\n",
      unsigned{DaemonConfig().listen.port}, files.certificate.c_str(), files.key.c_str(),
      files.ca.c_str());
  std::printf(
      "Ranks need these variables, and on other machines copies of the files; then statctl:\n");
  for (const char* prefix : {"STATAGENT", "STATCTL"})
    std::fputs(VariablesLine(prefix, address, files, true, "").c_str(), stdout);
  std::printf("Keep %s: it signs certificates that all of them trust.\n", files.ca_key.c_str());
  return 0;
}

}  // namespace statcollect
