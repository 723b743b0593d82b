#include "agent/option_resolver.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <thread>
#include <utility>

#include "common/byte_size.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/project.h"
#include "common/records.h"
#include "common/redact.h"
#include "common/token_file.h"
#include "common/unix_address.h"

namespace statcollect {
namespace {

constexpr std::size_t kBufferRecordsMax = 1u << 24;
constexpr std::uint32_t kThreadsMax = 64, kDefaultThreadsMax = 4;
constexpr std::size_t kBufferBytesMax = std::size_t{4} << 30;
// A file begins with what the send window holds.
constexpr std::uint64_t kSpillBytesMin = 64u << 20;
constexpr std::size_t kConfigEntriesMax = 4096;
constexpr std::size_t kConfigValueBytesMax = 16u << 10;
constexpr std::size_t kConfigBytesMax = 1u << 20;
constexpr std::chrono::milliseconds kConnectTimeoutMax = std::chrono::hours(1);

Status Invalid(const std::string& option, const std::string& found, const std::string& expected) {
  return Status(Code::kInvalidArgument, "start the agent: " + option + " is '" + Printable(found) +
                                            "'; expected " + expected);
}

// Numbers, switches and texts from STATAGENT_<NAME>.
class Environment {
 public:
  explicit Environment(const GetEnv& getenv) : getenv_(getenv) {}

  void Fill(const char* name, std::string* text) const {
    if (text->empty()) *text = getenv_(Variable(name)).value_or("");
  }

  template <typename T>
  Status Fill(const char* name, std::optional<T>* number) const {
    if (number->has_value()) return Status::Ok();
    const auto text = getenv_(Variable(name));
    if (!text) return Status::Ok();
    const auto value = ParseNumber<T>(*text);
    if (!value) return Invalid(Variable(name), *text, "a whole number from 0");
    *number = *value;
    return Status::Ok();
  }

  Status Fill(const char* name, std::optional<bool>* value) const {
    if (value->has_value()) return Status::Ok();
    const auto text = getenv_(Variable(name));
    if (!text) return Status::Ok();
    for (const char* yes : {"1", "true", "yes", "on", "True", "TRUE"}) {
      if (*text == yes) *value = true;
    }
    for (const char* no : {"0", "false", "no", "off", "False", "FALSE"}) {
      if (*text == no) *value = false;
    }
    return value->has_value() ? Status::Ok() : Invalid(Variable(name), *text, "1 or 0");
  }

 private:
  static std::string Variable(const std::string& name) { return "STATAGENT_" + name; }
  const GetEnv& getenv_;
};

Status FillFromEnvironment(const Environment& environment, statagent::Options* options,
                           std::optional<std::int64_t>* connect_timeout_ms) {
  environment.Fill("RUN", &options->run);
  environment.Fill("COLLECTOR", &options->collector);
  environment.Fill("TOKEN_FILE", &options->token_file);
  environment.Fill("PROJECT", &options->project);
  environment.Fill("IF_EXISTS", &options->if_exists);
  environment.Fill("LAUNCH", &options->launch);
  environment.Fill("STEPS", &options->steps);
  environment.Fill("RANKS", &options->ranks);
  environment.Fill("LOG", &options->log);
  environment.Fill("SPILL_DIR", &options->spill_dir);
  environment.Fill("SPILL_LIMIT", &options->spill_limit);
  environment.Fill("CAPTURES", &options->captures);
  environment.Fill("TLS_CA", &options->tls_ca);
  environment.Fill("TLS_CERT", &options->tls_cert);
  environment.Fill("TLS_KEY", &options->tls_key);
  environment.Fill("EXPONENTS", &options->exponents);
  environment.Fill("RING", &options->ring);
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("REQUIRED", &options->required));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("RANK", &options->rank));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("LOCAL_RANK", &options->local_rank));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("WORLD_SIZE", &options->world_size));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("SKETCH", &options->sketch));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("SAMPLES", &options->samples));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("BUFFER_RECORDS_MAX", &options->buffer_records_max));
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("THREADS", &options->threads));
  return environment.Fill("CONNECT_TIMEOUT_MS", connect_timeout_ms);
}

// host:port, [v6]:port or unix:/path.
Status CheckAddress(const std::string& address) {
  if (IsUnixAddress(address)) return SocketPath("start the agent: collector", address).status();
  const auto parsed = ParseHostPort(address);
  const bool good = parsed && parsed->port > 0 && Printable(address, address.size()) == address &&
                    parsed->host.find_first_of(" /?#@[]") == std::string::npos;
  return good ? Status::Ok()
              : Invalid("collector", address,
                        "host:port, statcollectord's gRPC address, as 127.0.0.1:7433 or "
                        "[::1]:7433, or unix:/path of "
                        "its socket");
}

Result<std::map<std::string, std::string>> CheckConfig(
    const std::map<std::string, std::string>& config) {
  if (config.size() > kConfigEntriesMax) {
    return Invalid("config", std::to_string(config.size()) + " entries",
                   "at most " + std::to_string(kConfigEntriesMax));
  }
  for (const auto& [key, value] : config)
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("configuration key", key));
  auto stored = StoredSettings(config, kConfigValueBytesMax);
  std::size_t bytes = 0;
  for (const auto& [key, value] : stored) bytes += key.size() + value.size();
  if (bytes > kConfigBytesMax) {
    return Invalid("config", std::to_string(bytes) + " bytes",
                   "at most " + std::to_string(kConfigBytesMax) + " in all");
  }
  return stored;
}

Status CheckNumbers(const statagent::Options& options, ResolvedOptions* resolved) {
  resolved->sketch = options.sketch.value_or(resolved->sketch);
  if (resolved->sketch != 0 && resolved->sketch != 16 && resolved->sketch != 32 &&
      resolved->sketch != 64) {
    return Invalid("sketch", std::to_string(resolved->sketch), "0, 16, 32 or 64");
  }
  resolved->samples = options.samples.value_or(resolved->samples);
  if (resolved->samples > kSamplesMax) {
    return Invalid("samples", std::to_string(resolved->samples),
                   "0.." + std::to_string(kSamplesMax));
  }
  resolved->buffer_records_max = options.buffer_records_max.value_or(resolved->buffer_records_max);
  const std::size_t slot_bytes = 200 + sizeof(double) * (resolved->sketch + resolved->samples);
  if (resolved->buffer_records_max < 1 || resolved->buffer_records_max > kBufferRecordsMax ||
      resolved->buffer_records_max > kBufferBytesMax / slot_bytes) {
    return Invalid("buffer_records_max", std::to_string(resolved->buffer_records_max),
                   "1.." +
                       std::to_string(std::min(kBufferRecordsMax, kBufferBytesMax / slot_bytes)) +
                       " (a record takes " + std::to_string(slot_bytes) + " bytes)");
  }
  resolved->threads = options.threads.value_or(resolved->threads);
  if (resolved->threads < 1 || resolved->threads > kThreadsMax) {
    return Invalid("threads", std::to_string(resolved->threads),
                   "1.." + std::to_string(kThreadsMax));
  }
  resolved->connect_timeout = options.connect_timeout.value_or(resolved->connect_timeout);
  if (resolved->connect_timeout.count() < 0 || resolved->connect_timeout > kConnectTimeoutMax) {
    return Invalid("connect_timeout", std::to_string(resolved->connect_timeout.count()) + " ms",
                   "0 to one hour");
  }
  return Status::Ok();
}

std::uint32_t UsableProcessors() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const int count = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 0;
  return count > 0 ? static_cast<std::uint32_t>(count)
                   : std::max(1u, std::thread::hardware_concurrency());
}

// A positive number in a variable of the launcher or of OpenMP, which may also hold a list: 0 if
// there is none.
std::uint32_t LeadingNumber(const GetEnv& getenv, const char* name) {
  const std::string text = getenv(name).value_or("");
  const auto leading = ParseLeadingNumber<std::uint32_t>(text);
  return leading ? leading->number : 0;
}

// OpenMP's number of threads if it is set, otherwise this rank's share of the processors, within a
// modest limit.
std::uint32_t DefaultThreads(const GetEnv& getenv) {
  std::uint32_t threads = LeadingNumber(getenv, "OMP_NUM_THREADS");
  if (threads == 0) {
    std::uint32_t ranks = LeadingNumber(getenv, "LOCAL_WORLD_SIZE");
    if (ranks == 0) ranks = LeadingNumber(getenv, "OMPI_COMM_WORLD_LOCAL_SIZE");
    threads = UsableProcessors() / std::max(ranks, 1u);
  }
  return std::clamp(threads, 1u, kDefaultThreadsMax);
}

Status CheckSpill(const statagent::Options& options, SpillOptions* spill) {
  if (!options.spill_dir.empty()) {
    std::error_code error;
    const auto directory =
        std::filesystem::absolute(options.spill_dir, error);  // the program may go elsewhere
    if (error) return Invalid("spill_dir", options.spill_dir, "a folder");
    spill->directory = directory.string();
  }
  if (options.spill_limit.empty()) return Status::Ok();
  const auto bytes = ParseByteSize(options.spill_limit);
  if (!bytes || *bytes < kSpillBytesMin)
    return Invalid("spill_limit", options.spill_limit,
                   "a size of at least 64MiB, such as 512MiB or 20GiB");
  spill->bytes_max = *bytes;
  return Status::Ok();
}

Status CheckTokenPath(const std::string& given, std::string* token_file) {
  if (given.empty()) return Status::Ok();
  if (ContainsToken(given))
    return Status(Code::kInvalidArgument,
                  "start the agent: token_file is a token; expected the path of a file that holds "
                  "it, because "
                  "others can read environment and command lines; revoke that token");
  std::error_code error;
  *token_file = std::filesystem::absolute(given, error).string();  // the program may go elsewhere
  return error ? Invalid("token_file", given, "the path of a file with a token") : Status::Ok();
}

// A certificate without an authority would be sent in plain text: no TLS, and nobody would notice.
Status CheckTls(const statagent::Options& options, TlsOptions* tls) {
  *tls = {.authorities = options.tls_ca, .certificate = options.tls_cert, .key = options.tls_key};
  if (tls->authorities.empty() && !(tls->certificate.empty() && tls->key.empty()))
    return Invalid("tls_ca", "",
                   "the collector's ca.pem beside tls_cert and tls_key (STATAGENT_TLS_CA)");
  for (std::string* path : {&tls->authorities, &tls->certificate, &tls->key}) {
    if (path->empty()) continue;
    std::error_code error;
    *path = std::filesystem::absolute(*path, error).string();  // the program may go elsewhere
    if (error) return Invalid("tls_ca", *path, "a file");
  }
  return Status::Ok();
}

// Of the Python package's init, which puts this key into the configuration. A run without noise
// must not be taken for a twin.
Status CheckPerturbation(const statagent::Options& options, const GetEnv& getenv) {
  const std::string asked = getenv("STATAGENT_PERTURB").value_or("");
  if (asked.empty() || options.config.contains("recording.perturb")) return Status::Ok();
  return Invalid("STATAGENT_PERTURB", asked,
                 "nothing, because only Python programs with statagent.watch(model) can put noise "
                 "into a model; "
                 "unset it");
}

Status CheckIfExists(const std::string& given, IfExists* if_exists) {
  if (given.empty()) return Status::Ok();
  const auto policy = ParseIfExists(given);
  if (!policy || *policy == IfExists::kUnspecified)
    return Invalid("if_exists", given, "'error', 'replace' or 'append'");
  *if_exists = *policy;
  return Status::Ok();
}

Status CheckLaunchId(const std::string& launch) {
  return launch.empty() ? Status::Ok() : ValidateTensorName("launch", launch);
}

}  // namespace

Result<ResolvedOptions> ResolveOptions(const statagent::Options& given, const GetEnv& getenv) {
  const Environment environment(getenv);
  ResolvedOptions resolved;
  std::optional<bool> disable;
  STATCOLLECT_RETURN_IF_ERROR(environment.Fill("DISABLE", &disable));
  resolved.disabled = disable.value_or(false);
  if (resolved.disabled) return resolved;

  statagent::Options options = given;
  std::optional<std::int64_t> connect_timeout_ms;
  STATCOLLECT_RETURN_IF_ERROR(FillFromEnvironment(environment, &options, &connect_timeout_ms));
  if (!options.connect_timeout && connect_timeout_ms)
    options.connect_timeout = std::chrono::milliseconds(*connect_timeout_ms);
  if (options.run.empty()) {
    return Status(
        Code::kInvalidArgument,
        "start the agent: the run has no name; expected one in the options or in STATAGENT_RUN");
  }
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  resolved.run = options.run;
  STATCOLLECT_RETURN_IF_ERROR(CheckPerturbation(options, getenv));
  if (!options.project.empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateProjectName(options.project));
  resolved.project = options.project;
  if (!options.collector.empty()) resolved.collector = options.collector;
  STATCOLLECT_RETURN_IF_ERROR(CheckAddress(resolved.collector));
  STATCOLLECT_RETURN_IF_ERROR(CheckTokenPath(options.token_file, &resolved.token_file));
  STATCOLLECT_RETURN_IF_ERROR(CheckIfExists(options.if_exists, &resolved.if_exists));
  STATCOLLECT_ASSIGN_OR_RETURN(resolved.config, CheckConfig(options.config));
  resolved.required = options.required.value_or(false);
  STATCOLLECT_RETURN_IF_ERROR(CheckLaunchId(options.launch));
  resolved.launch = {options.rank, options.local_rank, options.world_size, options.launch,
                     options.ranks};
  STATCOLLECT_ASSIGN_OR_RETURN(resolved.steps, StepSet::Parse(options.steps));
  const auto level = ParseLogLevel(options.log);
  if (!level) return Invalid("log", options.log, "'off', 'error', 'warning' or 'info'");
  resolved.log = *level;
  STATCOLLECT_RETURN_IF_ERROR(CheckSpill(options, &resolved.spill));
  STATCOLLECT_RETURN_IF_ERROR(CheckTls(options, &resolved.tls));
  auto captures = ParseCaptureSpecs(options.captures);
  if (!captures.ok())
    return Status(captures.status().code(),
                  "start the agent: captures: " + captures.status().message());
  resolved.captures = *std::move(captures);
  auto exponents = ParseExponentSpecs(options.exponents);
  if (!exponents.ok())
    return Status(exponents.status().code(), "start the agent: " + exponents.status().message());
  resolved.exponents = *std::move(exponents);
  auto kept = RingSpec::Parse(options.ring);
  if (!kept.ok())
    return Status(kept.status().code(), "start the agent: " + kept.status().message());
  resolved.ring = *std::move(kept);
  resolved.threads = DefaultThreads(getenv);
  STATCOLLECT_RETURN_IF_ERROR(CheckNumbers(options, &resolved));
  return resolved;
}

}  // namespace statcollect
