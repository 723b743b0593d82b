// Configuration of statcollectord: command line, then configuration file, then defaults.
#ifndef STATCOLLECT_SERVER_DAEMON_CONFIG_H_
#define STATCOLLECT_SERVER_DAEMON_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/control/address_list.h"
#include "server/control/alarm_settings.h"
#include "server/control/project_limits.h"
#include "server/daemon/local_socket.h"
#include "server/daemon/units.h"
#include "server/http/endpoint.h"
#include "tls/files.h"

namespace statcollect {

struct DaemonConfig {
  std::string data_dir = "./statcollect-data";
  std::string store = "rocksdb";  // below data_dir; or the address of a ClickHouse, see
                                  // server/store/clickhouse/dsn.h
  bool UsesClickHouse() const { return store != "rocksdb"; }
  Endpoint listen{.host = "127.0.0.1", .port = 7433};  // gRPC
  bool listens_tcp = true;                             // on `listen`
  LocalSocketOptions socket;  // gRPC, too; always plain text; without a path: none
  std::optional<Endpoint> http = Endpoint{.host = "127.0.0.1", .port = 7434};  // absent: off
  bool fsync = true;  // false: acknowledge once the operating system has the data
  tls::Files tls;     // of both addresses; without a certificate they speak plain text
  bool tls_auto =
      false;  // make the files below data_dir/tls, and tokens, if they are missing, and use them
  bool tls_1_2 = false;  // allow TLS 1.2, too
  bool UsesTls() const { return tls_auto || !tls.certificate.empty(); }
  std::set<std::string, std::less<>>
      http_allowed_hosts;                // more names that a request's Host may have, lower case
  bool insecure = false;                 // allow addresses that other machines can reach
  std::uint64_t disk_free_min_mib = 64;  // ingest is refused below it
  unsigned query_threads = 2;
  std::uint64_t query_scan_bytes_max = std::uint64_t{64} << 30;  // of one query
  unsigned connections_max = 4096;                               // gRPC
  unsigned http_connections_max = 1024;
  std::uint64_t grpc_memory_mib = 1024;  // of gRPC's buffers
  unsigned token_streams_max = 0;        // open streams of one token or certificate; 0: no limit
  // Bytes a second that agents may send, with one token or certificate, and all; 0: no limit.
  std::uint64_t token_rate_max = 0, ingest_rate_max = 0;
  std::string log_level = "info";
  std::chrono::seconds retention{0};  // age of a run's last write; 0: off
  DiskLimit max_disk;                 // of the store
  ProjectLimits project_limits;       // of the runs of a project
  AlarmSettings alarms;
  std::string alarm_webhook;     // http[s]://HOST[:PORT][/PATH]; empty: none
  std::string alarm_webhook_ca;  // file of certificate authorities, PEM; empty: the system's
  std::string
      alarm_webhook_secret_file;  // of the key that signs its messages; empty: they are not signed
  AddressList alarm_webhook_allow;  // networks that it may be in; empty: all
  std::vector<std::string>
      tls_principals;      // what names in client certificates allow, as ParseGrants takes it
  bool no_tokens = false;  // serve a store without tokens that was used with them
  std::string token_file;  // of tokens; empty: <data_dir>/tokens, if it exists
  std::string TokenPath() const;
  bool HasTokens() const;       // looks whether the file exists, unless it is named
  std::string restore_from;     // checkpoint to start from; empty: none
  bool accept_loss = false;     // open a store of which something is missing
  bool until_unused = false;    // end once no statctl uses it (server/daemon/users.h)
  std::string checkpoint_root;  // folder of checkpoints that clients ask for, absolute; empty: none
};

// How messages name the certificate files.
inline const tls::Names kTlsFlags{
    .certificate = "--tls-cert", .key = "--tls-key", .authorities = "--tls-client-ca"};

// The result of parsing: run with `config`, or print something and exit with a code.
struct ParsedCommandLine {
  DaemonConfig config;
  // if set: print `text` (to standard output if 0, otherwise to standard error) and exit
  std::optional<int> exit_code;
  std::string text;
};

// Never exits or prints by itself. Errors return exit code 2: unknown flags, an unreadable or
// invalid configuration file, invalid addresses, and addresses that other machines can reach
// without `insecure`.
ParsedCommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& version);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_CONFIG_H_
