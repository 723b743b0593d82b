#include "server/daemon/certificates.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "tls/authority.h"

namespace statcollect {
namespace {

// An address that means "all of this machine" is no name for it.
std::vector<std::string> HostsOf(const DaemonConfig& config) {
  std::vector<std::string> hosts = tls::OwnHosts();
  for (const std::string& host : {config.listen.host, config.http ? config.http->host : std::string()}) {
    if (!host.empty() && host != "0.0.0.0" && host != "::" &&
        std::find(hosts.begin(), hosts.end(), host) == hosts.end())
      hosts.push_back(host);
  }
  return hosts;
}

void PrintVariables(std::FILE* to, const tls::AuthorityFiles& files, const std::string& collector,
                    bool mutual) {
  std::fprintf(to, "Copy %s to the clients%s and set there:\n", files.ca.c_str(),
               mutual ? ", with client.pem and client.key beside it," : "");
  for (const char* prefix : {"STATAGENT", "STATCTL"}) {
    std::fprintf(to, "  export %s_COLLECTOR=%s %s_TLS_CA=%s", prefix, collector.c_str(), prefix,
                 files.ca.c_str());
    if (mutual)
      std::fprintf(to, " %s_TLS_CERT=%s %s_TLS_KEY=%s", prefix, files.client_certificate.c_str(), prefix,
                   files.client_key.c_str());
    std::fprintf(to, "\n");
  }
}

std::string NameForClients(const Endpoint& listen) {
  if (listen.host != "0.0.0.0" && listen.host != "::") return listen.ToString();
  const auto hosts = tls::OwnHosts();
  return Endpoint{.host = hosts.size() > 3 ? hosts[3] : "127.0.0.1", .port = listen.port}.ToString();
}

}  // namespace

Result<std::unique_ptr<tls::Reloader>> OpenCertificates(const DaemonConfig& config) {
  tls::Files files = config.tls;
  if (config.tls_auto) {
    const auto folder = std::filesystem::absolute(std::filesystem::path(config.data_dir) / "tls").string();
    const tls::AuthorityFiles made = tls::FilesIn(folder);
    files.certificate = made.certificate;
    files.key = made.key;
    if (std::error_code error; !std::filesystem::exists(made.certificate, error)) {
      STATCOLLECT_RETURN_IF_ERROR(tls::MakeCertificates(folder, {.hosts = HostsOf(config)}));
      spdlog::info("TLS: made an authority and a certificate in {}", folder);
    }
  }
  if (files.certificate.empty()) return std::unique_ptr<tls::Reloader>();
  return tls::Reloader::Start(files, kTlsFlags,
                              {.log = [](const std::string& line) { spdlog::warn("{}", line); }});
}

void PrintClientVariables(const DaemonConfig& config, const Endpoint& listen) {
  if (!config.tls_auto) return;
  const auto folder = std::filesystem::absolute(std::filesystem::path(config.data_dir) / "tls").string();
  PrintVariables(stderr, tls::FilesIn(folder), NameForClients(listen), !config.tls.authorities.empty());
}

int RunTlsCommand(int argc, const char* const* argv) {
  CLI::App app("Certificates for the collector", "statcollectord tls");
  app.require_subcommand(1);
  CLI::App* init = app.add_subcommand(
      "init",
      "Makes a private authority and certificates that it signed, or new ones of an authority that is there");
  std::string directory;
  std::vector<std::string> hosts;
  init->add_option("DIR", directory, "Folder for the files; made if missing")->required();
  init->add_option("--host", hosts,
                   "Name or address of the collector; may be repeated (default: this machine's)")
      ->allow_extra_args(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (hosts.empty()) hosts = tls::OwnHosts();
  directory = std::filesystem::absolute(directory).string();
  if (const Status made = tls::MakeCertificates(directory, {.hosts = hosts}); !made.ok()) {
    std::cerr << "statcollectord: " << made.message() << '\n';
    return 2;
  }
  const tls::AuthorityFiles files = tls::FilesIn(directory);
  std::printf("statcollectord --tls-cert %s --tls-key %s\n", files.certificate.c_str(), files.key.c_str());
  PrintVariables(stdout, files, hosts.front() + ":7433", false);
  return 0;
}

}  // namespace statcollect
