#include "server/runtime/config.h"

#include <sstream>

#include <CLI/CLI.hpp>

namespace statcollect {
namespace {

constexpr std::uint64_t kDiskFreeMinMax = std::uint64_t{1} << 24;  // MiB: 16 TiB
constexpr char kDescription[] =
    "statcollectord: the collector of statcollect. Takes statistics from training ranks over gRPC, keeps "
    "them in an "
    "embedded RocksDB, answers statctl.";

constexpr char kFooter[] = R"(
Examples:
  statcollectord                                     data in ./statcollect-data, gRPC on 127.0.0.1:7433
  statcollectord --data-dir /var/lib/statcollect --config /etc/statcollect/statcollectord.toml
  statcollectord --listen 127.0.0.1:0 --http off     any free port; the ready line says which
  statcollectord --restore-from /backup/monday --data-dir ./restored   begins with what statctl checkpoint saved

Prints one line when it is ready. SIGTERM: stops accepting, writes what was received, exits with 0. Exit code 2: it could not
start; the message says why.)";

// Text as the flags give it, before it is checked.
struct RawFlags {
  std::string listen, http, durability = "fsync", retention = "off", max_disk = "off";
};

Status Check(const RawFlags& raw, DaemonConfig& config) {
  auto listen = ParseEndpoint("--listen", raw.listen);
  if (!listen.ok()) return listen.status();
  config.listen = *listen;
  config.http.reset();
  if (raw.http != "off") {
    auto http = ParseEndpoint("--http", raw.http);
    if (!http.ok()) return http.status();
    config.http = *http;
  }
  config.fsync = raw.durability == "fsync";
  auto retention = ParseDuration("--retention", raw.retention);
  if (!retention.ok()) return retention.status();
  config.retention = *retention;
  auto max_disk = ParseDiskLimit("--max-disk", raw.max_disk);
  if (!max_disk.ok()) return max_disk.status();
  config.max_disk = *max_disk;
  if (config.insecure) return Status::Ok();
  for (const auto& [flag, endpoint] :
       {std::pair{"--listen", &config.listen}, std::pair{"--http", config.http ? &*config.http : nullptr}}) {
    if (endpoint != nullptr && !endpoint->IsLoopback()) {
      return {Code::kInvalidArgument,
              std::string(flag) + " " + endpoint->ToString() +
                  ": other machines can reach this address, and the collector has neither TLS nor tokens; "
                  "expected "
                  "a loopback address; use one (with an SSH tunnel from elsewhere), or add --insecure if the "
                  "network is trusted"};
    }
  }
  return Status::Ok();
}

}  // namespace

ParsedCommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& version) {
  ParsedCommandLine parsed;
  DaemonConfig& config = parsed.config;
  RawFlags raw{.listen = config.listen.ToString(), .http = config.http->ToString()};

  CLI::App app(kDescription, "statcollectord");
  app.footer(kFooter);
  app.set_version_flag("--version", "statcollectord " + version, "Print the version and exit");
  app.set_config("--config", "", "Read flags from a file (TOML or INI: data-dir = \"/var/lib/statcollect\")");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option("--data-dir", config.data_dir, "Folder of the store; made if it is not there")
      ->capture_default_str();
  app.add_option(
         "--restore-from", config.restore_from,
         "Checkpoint to copy into --data-dir, verified, before the start; --data-dir must be absent or "
         "empty")
      ->check([](const std::string& path) {
        return path.empty()
                   ? std::string("found an empty path; expected a folder that statctl checkpoint made")
                   : std::string();
      })
      ->configurable(false);
  app.add_option("--listen", raw.listen, "gRPC address, HOST:PORT; port 0: any free one")
      ->capture_default_str();
  app.add_option("--http", raw.http, "Address of health, metrics and pages, or off")->capture_default_str();
  app.add_option("--durability", raw.durability,
                 "What an acknowledgement means: fsync (on disk) or process (handed to the operating system)")
      ->check(CLI::IsMember({"fsync", "process"}))
      ->capture_default_str();
  app.add_option("--disk-free-min", config.disk_free_min_mib,
                 "MiB of free disk below which ingest is refused")
      ->check(CLI::Range(std::uint64_t{0}, kDiskFreeMinMax))
      ->capture_default_str();
  app.add_option("--retention", raw.retention,
                 "Remove runs whose last write is older, such as 30d; off: never")
      ->capture_default_str();
  app.add_option("--max-disk", raw.max_disk,
                 "Remove the oldest runs while the store is larger, such as 200GiB, or 80% of its disk; off: "
                 "never")
      ->capture_default_str();
  app.add_option("--query-threads", config.query_threads, "Threads that answer queries")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--log-level", config.log_level,
                 "debug, info, warn or error; the log goes to standard error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_flag("--insecure", config.insecure,
               "Allow addresses that other machines can reach, without TLS or tokens");

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
    return stop(2, std::string("statcollectord: ") + error.what() + "; see statcollectord --help\n");
  }
  if (Status checked = Check(raw, config); !checked.ok())
    return stop(2, "statcollectord: " + checked.message() + "\n");
  return parsed;
}

}  // namespace statcollect
