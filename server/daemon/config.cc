#include "server/daemon/config.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <tuple>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/choice.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/project.h"
#include "common/unix_address.h"
#include "server/control/webhook.h"
#include "server/control/webhook_signature.h"
#include "server/http/foreign.h"
#include "server/store/clickhouse/dsn.h"

namespace statcollect {
namespace {

constexpr std::uint64_t kDiskFreeMinMax = std::uint64_t{1} << 24;  // MiB: 16 TiB
constexpr char kDescription[] =
    "statcollectord: the collector. It receives statistics from training ranks over gRPC, stores "
    "them in an embedded RocksDB, and answers statctl.";

constexpr char kFooter[] = R"(
Examples:
  statcollectord                                  data in ./statcollect-data, gRPC on 127.0.0.1:7433
  statcollectord --data-dir /var/lib/statcollect --config /etc/statcollect/statcollectord.toml
  statcollectord --listen 127.0.0.1:0 --http off  any free port; the ready line shows it
  statcollectord --listen unix:/run/statcollect/grpc.sock --socket-mode 0660 --socket-group ml
                                                  no port, only a socket
  statcollectord --listen 0.0.0.0:7433 --tls-auto
                                                  other machines reach it; prints what clients need
  statcollectord tls init certs --host gpu7       makes certificates, and starts nothing
  statcollectord --restore-from /backup/monday --data-dir ./restored
                                                  restores a checkpoint
  statcollectord --store clickhouse://127.0.0.1:8123/statcollect
                                                  several collectors may share these records
  statcollectord token --help                     makes, lists and revokes tokens (access control)

Prints one line when it is ready. SIGTERM: stops accepting, writes what was received, exits with 0.
Exit code 2: it could not start; the message says why.)";

// Text as the flags give it, before it is checked.
struct RawFlags {
  std::vector<std::string> listen;
  std::string http, socket_mode = "0600", durability = "fsync", retention = "off", max_disk = "off";
  std::string query_scan_max = "64GiB";
  std::string token_rate_max = "off", ingest_rate_max = "off";
  std::vector<std::string> project_disk_max;
  std::string alarms = "on";
  std::string alarm_webhook_allow;
  std::string tls_min = "1.3";
  std::vector<std::string> http_allowed_hosts;
  std::uint64_t alarm_memory_mib = 64;
};

Status CheckWebhook(const RawFlags& raw, DaemonConfig& config) {
  if (config.alarm_webhook.empty()) {
    if (config.alarm_webhook_secret_file.empty() && raw.alarm_webhook_allow.empty())
      return Status::Ok();
    return {Code::kInvalidArgument,
            "--alarm-webhook-secret-file, --alarm-webhook-allow: found no webhook; expected "
            "--alarm-webhook, too"};
  }
  STATCOLLECT_RETURN_IF_ERROR(ParseWebhook(config.alarm_webhook).status());
  if (!config.alarm_webhook_secret_file.empty())
    STATCOLLECT_RETURN_IF_ERROR(ReadWebhookSecret(config.alarm_webhook_secret_file).status());
  STATCOLLECT_ASSIGN_OR_RETURN(
      config.alarm_webhook_allow,
      AddressList::Parse("--alarm-webhook-allow", raw.alarm_webhook_allow));
  return Status::Ok();
}

// "on", "off", or the names of the rules that are on.
Status CheckAlarms(const RawFlags& raw, DaemonConfig& config) {
  config.alarms.memory_bytes_max = static_cast<std::size_t>(raw.alarm_memory_mib) << 20;
  config.alarms.on.fill(raw.alarms == "on");
  STATCOLLECT_RETURN_IF_ERROR(CheckWebhook(raw, config));
  if (raw.alarms == "on" || raw.alarms == "off") return Status::Ok();
  std::istringstream names(raw.alarms);
  for (std::string name; std::getline(names, name, ',');) {
    const auto found = std::find(kAlarmRuleNames.begin(), kAlarmRuleNames.end(), name);
    if (found == kAlarmRuleNames.end()) {
      std::string known;
      for (const std::string_view rule : kAlarmRuleNames) known.append(", ").append(rule);
      return {Code::kInvalidArgument,
              "--alarms: '" + name +
                  "' is not an alarm; expected on, off, or a list of alarms, separated by commas" +
                  known.replace(0, 1, ":")};
    }
    config.alarms.on[static_cast<std::size_t>(found - kAlarmRuleNames.begin())] = true;
  }
  return Status::Ok();
}

// Where the data lies, and where the collector answers.
void AddPlaceOptions(CLI::App& app, RawFlags& raw, DaemonConfig& config) {
  app.add_option("--data-dir", config.data_dir, "Folder of the store; created if missing")
      ->check(OptionAsPath)
      ->capture_default_str();
  app.add_option("--store", config.store,
                 "Where the records are kept: rocksdb, in --data-dir, or "
                 "clickhouse://[USER:PASSWORD@]HOST:PORT/DATABASE, which several collectors may "
                 "share (clickhouses:// with TLS, ?quorum=2 for replicas, HOST|HOST for shards: "
                 "docs/clickhouse.md)")
      ->capture_default_str();
  app.add_option("--restore-from", config.restore_from,
                 "Checkpoint to verify and copy into --data-dir before the start; --data-dir must "
                 "be absent or empty")
      ->check([](const std::string& path) {
        return path.empty() ? std::string(
                                  "found an empty path; expected a folder written by statctl admin "
                                  "checkpoint")
                            : std::string();
      })
      ->configurable(false);
  app.add_option("--listen", raw.listen,
                 "gRPC address, HOST:PORT (port 0: any free port) or unix:/PATH of a socket; may "
                 "be given twice, for both")
      ->allow_extra_args(false)
      ->default_str(raw.listen.front());
  app.add_option("--checkpoint-root", config.checkpoint_root,
                 "Folder of checkpoints: statctl admin checkpoint NAME then writes into it, and "
                 "cannot name another place. Needed as soon as clients have tokens or certificates")
      ->check(CLI::ExistingDirectory);
  app.add_option("--socket-mode", raw.socket_mode,
                 "Permissions of the socket, such as 0660: whoever may write to it may connect")
      ->capture_default_str();
  app.add_option("--socket-group", config.socket.group, "Group of the socket, by name or number");
  app.add_option("--http", raw.http, "HTTP address of page, queries, health and metrics, or off")
      ->capture_default_str();
}

// What an acknowledgement promises, and what is removed for lack of space.
void AddStoreOptions(CLI::App& app, RawFlags& raw, DaemonConfig& config) {
  app.add_option("--durability", raw.durability,
                 "When a record counts as stored: fsync (on disk) or process (handed to the "
                 "operating system)")
      ->check(CLI::IsMember({"fsync", "process"}))
      ->capture_default_str();
  app.add_option("--disk-free-min", config.disk_free_min_mib,
                 "MiB of free disk below which ingest is refused")
      ->check(CLI::Range(std::uint64_t{0}, kDiskFreeMinMax))
      ->capture_default_str();
  app.add_option("--retention", raw.retention,
                 "Remove runs whose last write is older than this, such as 30d; off: never")
      ->capture_default_str();
  app.add_option("--max-disk", raw.max_disk,
                 "Remove the oldest runs while the store is larger than this, such as 200GiB, or "
                 "80% of its disk; off: never")
      ->capture_default_str();
  app.add_option("--project-disk-max", raw.project_disk_max,
                 "Refuse records of a project while its runs take more than this, such as 200GiB, "
                 "or vision=1TiB for one project; may be repeated")
      ->allow_extra_args(false);
}

// The thresholds of docs/alarms.md.
void AddAlarmOptions(CLI::App& app, RawFlags& raw, DaemonConfig& config) {
  AlarmSettings& a = config.alarms;
  const auto add = [&](const char* name, auto& value, const char* help, double low, double high) {
    app.add_option(name, value, help)
        ->check(CLI::Range(low, high))
        ->capture_default_str()
        ->group("Alarms");
  };
  app.add_option("--alarms", raw.alarms,
                 "on, off, or a list of the rules to turn on, separated by commas")
      ->capture_default_str()
      ->group("Alarms");
  app.add_option(
         "--alarm-webhook", config.alarm_webhook,
         "POST each alarm as JSON to this address, http://HOST:PORT/PATH or https://HOST/PATH")
      ->group("Alarms");
  app.add_option(
         "--alarm-webhook-ca", config.alarm_webhook_ca,
         "PEM file of the certificate authorities for an https webhook (default: the system's)")
      ->check(CLI::ExistingFile)
      ->group("Alarms");
  app.add_option("--alarm-webhook-secret-file", config.alarm_webhook_secret_file,
                 "File of a secret, mode 0600; messages are then signed with it (docs/alarms.md)")
      ->group("Alarms");
  app.add_option(
         "--alarm-webhook-allow", raw.alarm_webhook_allow,
         "Networks in which the webhook may be, such as 192.0.2.0/24,10.1.2.3; without it all")
      ->group("Alarms");
  add("--alarm-warmup-steps", a.warmup_steps, "Number of values before norms and losses are judged",
      3, kAlarmWindowMax);
  add("--alarm-explosion-factor", a.explosion_factor,
      "norm_explosion: raised above this many times the running median", 1.1, 1e12);
  add("--alarm-explosion-spreads", a.explosion_spreads,
      "norm_explosion: and above this many robust standard deviations of the logarithm", 0, 1e6);
  add("--alarm-vanishing-ratio", a.vanishing_ratio,
      "vanishing_gradient: raised below this fraction of the running median", 0, 0.5);
  add("--alarm-vanishing-steps", a.vanishing_steps,
      "vanishing_gradient: for this many steps in a row", 1, 250);
  add("--alarm-loss-scale-min", a.loss_scale_min, "loss_scale_min: raised at or below this scale",
      0, 1e12);
  add("--alarm-loss-scale-falls", a.loss_scale_falls,
      "loss_scale_min: or after this many falls in a row", 2, 1000);
  add("--alarm-loss-spike-factor", a.loss_spike_factor,
      "loss_spike: raised above this many times the running median", 1.1, 1e12);
  add("--alarm-loss-spike-spreads", a.loss_spike_spreads,
      "loss_spike: and above this many robust standard deviations", 0, 1e6);
  add("--alarm-update-norm-factor", a.update_norm_factor,
      "update_norm: raised above this many times the running median", 1.1, 1e12);
  add("--alarm-update-norm-spreads", a.update_norm_spreads,
      "update_norm: and above this many robust standard deviations", 0, 1e6);
  add("--alarm-dead-relu-zeros", a.dead_relu_zeros,
      "dead_relu: raised if at least this fraction of the elements is zero", 0.01, 1);
  add("--alarm-dead-relu-steps", a.dead_relu_steps, "dead_relu: for this many steps in a row", 1,
      250);
  add("--alarm-memory-mib", raw.alarm_memory_mib,
      "MiB of memory for the state of all runs; beyond it, the state of the rank silent for "
      "longest is dropped",
      1, 65536);
}

// Who may connect, and how.
void AddNetworkOptions(CLI::App& app, RawFlags& raw, DaemonConfig& config) {
  const auto file = [&](const char* name, std::string& path, const char* help) {
    app.add_option(name, path, help)->group("Network");
  };
  file("--tls-cert", config.tls.certificate,
       "PEM file of the collector's certificate, with its chain; turns TLS on for both addresses. "
       "Changed files are used without a restart");
  file("--tls-key", config.tls.key, "PEM file of its private key");
  file(
      "--tls-client-ca", config.tls.authorities,
      "PEM file of certificate authorities; clients then need a certificate signed by one of them");
  app.add_option("--tls-principal", config.tls_principals,
                 "NAME=SCOPES or NAME=SCOPES@PROJECT: what a client certificate with this name "
                 "allows without a token, such as rank7.gpu.example=ingest; may be repeated. With "
                 "one, every call needs such a certificate or a token")
      ->allow_extra_args(false)
      ->group("Network");
  app.add_flag("--tls-auto", config.tls_auto,
               "Turn TLS on with a private authority in DATA-DIR/tls. The first start creates it "
               "and two tokens, and prints what clients need")
      ->group("Network");
  app.add_option("--tls-min", raw.tls_min, "Lowest TLS version to accept: 1.2 or 1.3")
      ->check(CLI::IsMember({"1.2", "1.3"}))
      ->capture_default_str()
      ->group("Network");
  app.add_option(
         "--http-allowed-host", raw.http_allowed_hosts,
         "One more name of this machine in browsers' addresses, such as gpu7.example.org; may be "
         "repeated. Others are refused, because an attacker's page could have them (DNS rebinding)")
      ->allow_extra_args(false)
      ->group("Network");
  app.add_flag("--insecure", config.insecure,
               "Allow addresses that other machines can reach, without TLS and tokens")
      ->group("Network");
}

// Who reaches the address could otherwise read along, or read and write everything.
Status CheckReachable(const char* flag, const Endpoint& endpoint, const DaemonConfig& config) {
  if (config.insecure || endpoint.IsLoopback()) return Status::Ok();
  const bool knows_clients =
      config.tls_auto || !config.tls.authorities.empty() || config.HasTokens();
  if (config.UsesTls() && knows_clients) return Status::Ok();
  const std::string found = config.UsesTls()     ? "TLS, but no tokens"
                            : config.HasTokens() ? "tokens, but no TLS, so others could read them"
                                                 : "neither TLS nor tokens";
  const std::string next =
      config.UsesTls()
          ? "make a token (statcollectord token create --data-dir " + Printable(config.data_dir) +
                " --scope ingest), or require client certificates (--tls-client-ca)"
          : "add --tls-auto, which creates what is missing and prints what clients need, or "
            "--tls-cert and --tls-key";
  return {Code::kInvalidArgument, std::string(flag) + " " + endpoint.ToString() +
                                      ": other machines can reach this address; found " + found +
                                      "; expected both; " + next +
                                      ", use a loopback address with an SSH tunnel, or add "
                                      "--insecure if you trust everybody on the network"};
}

Status CheckNetwork(const RawFlags& raw, DaemonConfig& config) {
  const tls::Files& files = config.tls;
  config.tls_1_2 = raw.tls_min == "1.2";
  if (config.tls_auto && !(files.certificate.empty() && files.key.empty()))
    return {Code::kInvalidArgument, std::string("--tls-auto: found ") +
                                        (files.certificate.empty() ? "--tls-key" : "--tls-cert") +
                                        " as well; expected only one of them; leave out the other"};
  if (files.certificate.empty() != files.key.empty())
    return {Code::kInvalidArgument, std::string(files.key.empty() ? "--tls-cert" : "--tls-key") +
                                        ": found without the other; expected both --tls-cert and "
                                        "--tls-key; add the missing one"};
  if (!config.UsesTls() && !files.authorities.empty())
    return {Code::kInvalidArgument,
            "--tls-client-ca: found no certificate of the collector; expected --tls-cert and "
            "--tls-key, or --tls-auto, with it; add them"};
  if (!config.tls_principals.empty() && files.authorities.empty())
    return {Code::kInvalidArgument,
            "--tls-principal: found no --tls-client-ca; expected the authorities of these "
            "certificates; add it"};
  for (const std::string& given : raw.http_allowed_hosts) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto host, ParseAllowedHost(given));
    config.http_allowed_hosts.insert(std::move(host));
  }
  if (config.listens_tcp)
    STATCOLLECT_RETURN_IF_ERROR(CheckReachable("--listen", config.listen, config));
  return config.http ? CheckReachable("--http", *config.http, config) : Status::Ok();
}

void AddServiceOptions(CLI::App& app, RawFlags& raw, DaemonConfig& config) {
  app.add_option("--query-threads", config.query_threads, "Threads that answer queries")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option(
         "--query-scan-max", raw.query_scan_max,
         "Most that one query may read, such as 64GiB; off: no limit. Does not apply to exports")
      ->capture_default_str();
  app.add_option("--connections-max", config.connections_max,
                 "Maximum number of gRPC connections; each rank and each statctl has one")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--http-connections-max", config.http_connections_max,
                 "Maximum number of HTTP connections")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--grpc-memory-mib", config.grpc_memory_mib,
                 "MiB of memory for data that gRPC has received and not passed on yet; beyond it, "
                 "senders wait and new connections are refused")
      ->check(CLI::Range(std::uint64_t{16}, std::uint64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--token-streams-max", config.token_streams_max,
                 "Streams that one token or client certificate may have open at a time, one for "
                 "each rank and each running statctl; 0: no limit")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--token-rate-max", raw.token_rate_max,
                 "What agents with one token or client certificate may send in a second, such as "
                 "50MiB; more waits; off: no limit")
      ->capture_default_str();
  app.add_option("--ingest-rate-max", raw.ingest_rate_max, "The same of all agents together")
      ->capture_default_str();
  app.add_flag(
         "--until-unused", config.until_unused,
         "End once no statctl and no agent uses it: how statctl starts a collector for itself")
      ->configurable(false);
  app.add_option("--log-level", config.log_level,
                 "debug, info, warn or error; the log goes to standard error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_option("--token-file", config.token_file,
                 "File of tokens made by statcollectord token create (default: <data-dir>/tokens, "
                 "if it exists). If there is one, every call needs a token");
  app.add_flag("--accept-loss", config.accept_loss,
               "Open the store although logs, or parts of files, are missing, without what they "
               "held; copy --data-dir first")
      ->configurable(false);
  app.add_flag("--no-tokens", config.no_tokens,
               "Serve a store without tokens that was used with them; otherwise the collector does "
               "not start if their file is gone")
      ->configurable(false);
}

Status CheckCheckpointRoot(DaemonConfig& config) {
  if (config.checkpoint_root.empty()) return Status::Ok();
  std::error_code error;
  const auto root = std::filesystem::canonical(config.checkpoint_root, error);
  if (error)
    return {Code::kInvalidArgument,
            "--checkpoint-root: " + Printable(config.checkpoint_root) + ": " + error.message()};
  config.checkpoint_root = root.string();
  return Status::Ok();
}

// "200GiB" for each project, "vision=1TiB" for one.
Status CheckProjectLimits(const RawFlags& raw, DaemonConfig& config) {
  for (const std::string& text : raw.project_disk_max) {
    const std::size_t sign = text.find('=');
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto size,
        ParseSize("--project-disk-max", text.substr(sign == std::string::npos ? 0 : sign + 1), 0));
    if (sign == std::string::npos) {
      config.project_limits.each = size;
      continue;
    }
    const std::string project = text.substr(0, sign);
    if (const Status valid = ValidateProjectName(project); !valid.ok())
      return {valid.code(), "--project-disk-max: " + valid.message()};
    config.project_limits.named[project] = size;
  }
  if (!config.project_limits.any() || !config.UsesClickHouse()) return Status::Ok();
  return {Code::kInvalidArgument,
          "--project-disk-max: found --store clickhouse:// as well, where the size of a run is not "
          "known; expected --store rocksdb; limit the disk in ClickHouse"};
}

Status CheckStore(const DaemonConfig& config) {
  if (config.no_tokens && config.HasTokens())
    return {Code::kInvalidArgument,
            "--no-tokens: found tokens in '" + Printable(config.TokenPath()) +
                "'; expected no such file; remove it, or leave out --no-tokens"};
  if (!config.UsesClickHouse()) return Status::Ok();
  STATCOLLECT_RETURN_IF_ERROR(ParseClickHouseDsn(config.store).status());
  if (config.accept_loss)
    return {Code::kInvalidArgument,
            "--accept-loss: found --store clickhouse:// as well; expected --store rocksdb, whose "
            "files it is about; leave it out"};
  if (config.restore_from.empty()) return Status::Ok();
  return {Code::kInvalidArgument,
          "--restore-from: found --store clickhouse:// as well; expected --store rocksdb, whose "
          "checkpoints it restores; restore a backup of ClickHouse with ClickHouse's tools"};
}

// One address of each kind.
Status CheckListen(const RawFlags& raw, DaemonConfig& config) {
  config.listens_tcp = false;
  for (const std::string& address : raw.listen) {
    const bool socket = IsUnixAddress(address);
    if (socket ? !config.socket.path.empty() : config.listens_tcp)
      return {Code::kInvalidArgument,
              "--listen: found two addresses of one kind, the second one being '" +
                  Printable(address) +
                  "'; expected at most one HOST:PORT and one unix:/PATH; leave one out"};
    if (socket) {
      STATCOLLECT_ASSIGN_OR_RETURN(config.socket.path, SocketPath("--listen", address));
      continue;
    }
    STATCOLLECT_ASSIGN_OR_RETURN(config.listen, ParseEndpoint("--listen", address));
    config.listens_tcp = true;
  }
  constexpr unsigned kPermissions = 0777, kOwner = 0600;
  const auto mode = ParseNumber<unsigned>(raw.socket_mode, 8);
  if (!mode || *mode > kPermissions || (*mode & kOwner) != kOwner)
    return {Code::kInvalidArgument, "--socket-mode: found '" + Printable(raw.socket_mode) +
                                        "'; expected an octal number from 0600 to 0777 that lets "
                                        "the owner read and write, such as 0660"};
  config.socket.mode = *mode;
  return Status::Ok();
}

Status Check(const RawFlags& raw, DaemonConfig& config) {
  STATCOLLECT_RETURN_IF_ERROR(CheckListen(raw, config));
  config.http.reset();
  if (IsUnixAddress(raw.http))
    return {
        Code::kInvalidArgument,
        "--http: found '" + Printable(raw.http) +
            "'; expected HOST:PORT or off: browsers do not use sockets; only --listen takes one"};
  if (raw.http != "off") {
    STATCOLLECT_ASSIGN_OR_RETURN(config.http, ParseEndpoint("--http", raw.http));
  }
  config.fsync = raw.durability == "fsync";
  STATCOLLECT_ASSIGN_OR_RETURN(config.retention, ParseDuration("--retention", raw.retention));
  STATCOLLECT_ASSIGN_OR_RETURN(config.max_disk, ParseDiskLimit("--max-disk", raw.max_disk));
  STATCOLLECT_ASSIGN_OR_RETURN(
      config.query_scan_bytes_max,
      ParseSize("--query-scan-max", raw.query_scan_max, ~std::uint64_t{0}));
  for (const auto& [flag, text, rate] :
       {std::tuple("--token-rate-max", &raw.token_rate_max, &config.token_rate_max),
        std::tuple("--ingest-rate-max", &raw.ingest_rate_max, &config.ingest_rate_max)}) {
    STATCOLLECT_ASSIGN_OR_RETURN(*rate, ParseSize(flag, *text, 0));
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckStore(config));
  STATCOLLECT_RETURN_IF_ERROR(CheckProjectLimits(raw, config));
  STATCOLLECT_RETURN_IF_ERROR(CheckAlarms(raw, config));
  STATCOLLECT_RETURN_IF_ERROR(CheckCheckpointRoot(config));
  return CheckNetwork(raw, config);
}

}  // namespace

std::string DaemonConfig::TokenPath() const {
  return token_file.empty() ? data_dir + "/tokens" : token_file;
}

bool DaemonConfig::HasTokens() const {
  std::error_code error;
  return !token_file.empty() || std::filesystem::exists(TokenPath(), error);
}

ParsedCommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& version) {
  ParsedCommandLine parsed;
  DaemonConfig& config = parsed.config;
  RawFlags raw{.listen = {config.listen.ToString()}, .http = config.http->ToString()};

  CLI::App app(kDescription, "statcollectord");
  app.footer(kFooter);
  app.set_version_flag("--version", "statcollectord " + version, "Print the version and exit");
  app.set_config("--config", "",
                 "Read flags from a file (TOML or INI: data-dir = \"/var/lib/statcollect\")");
  app.allow_config_extras(CLI::config_extras_mode::error);
  // In the order of --help.
  AddPlaceOptions(app, raw, config);
  AddStoreOptions(app, raw, config);
  AddAlarmOptions(app, raw, config);
  AddServiceOptions(app, raw, config);
  AddNetworkOptions(app, raw, config);

  const auto stop = [&](int code, std::string text) {
    parsed.exit_code = code;
    parsed.text = std::move(text);
    return parsed;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream out, err;
    app.exit(asked, out, err);
    return stop(0, out.str());
  } catch (const CLI::ParseError& error) {
    return stop(2,
                std::string("statcollectord: ") + error.what() + "; see statcollectord --help\n");
  }
  if (Status checked = Check(raw, config); !checked.ok())
    return stop(2, "statcollectord: " + checked.message() + "\n");
  return parsed;
}

}  // namespace statcollect
