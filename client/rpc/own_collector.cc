#include "client/rpc/own_collector.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/rpc/diagnose.h"
#include "common/checksum.h"
#include "common/data_folder.h"
#include "common/names.h"
#include "common/unix_address.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace statcollect::client {
namespace {

using std::chrono::milliseconds;
using Cancelled = std::function<bool()>;
using Remark = std::function<void(const std::string&)>;

constexpr milliseconds kSlice{100};
constexpr milliseconds kSaidAfter{1000};  // a longer wait is said
constexpr milliseconds kEndTime{10'000};
constexpr char kLogFile[] = "statcollectord.messages";  // not .log: that is the store's
constexpr std::size_t kSaidBytes = 2000;                // of its log, in an error
constexpr std::uintmax_t kLogBytesMax = 1 << 20;        // a longer log is deleted

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

Status CannotUse(const std::string& folder, const std::string& why) {
  return {Code::kPermissionDenied, fmt::format("use the data folder '{}': {}; expected a folder "
                                               "this user may write; choose another with "
                                               "--data-dir",
                                               Printable(folder), why)};
}

// The folder, absolute; made if it is missing, for this user alone.
Result<std::string> Folder(const std::string& given) {
  std::error_code error;
  const auto path = std::filesystem::absolute(given, error);
  if (error) return CannotUse(given, error.message());
  if (!std::filesystem::is_directory(path, error)) {
    std::filesystem::create_directories(path.parent_path(), error);
    const bool made = mkdir(path.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) return CannotUse(given, std::strerror(errno));
    if (made) std::ofstream(path / ".gitignore") << "*\n";  // it is often made in a repository
    if (!std::filesystem::is_directory(path, error))
      return CannotUse(given, "something else has that name");
  }
  return path.lexically_normal().string();
}

// The time that another collector gets to open the folder, or to leave it.
class HolderTime {
 public:
  HolderTime(const std::string& folder, const Remark& remark) : folder_(folder), remark_(remark) {}
  // A short wait. False once the time is over.
  bool Wait(milliseconds slice) {
    const auto waited = std::chrono::steady_clock::now() - begin_;
    if (waited > milliseconds(30'000)) return false;
    if (waited > kSaidAfter && remark_ && !std::exchange(said_, true))
      remark_(fmt::format("statctl: another collector holds {}; waiting up to 30 s for its end",
                          Printable(folder_)));
    std::this_thread::sleep_for(slice);
    return true;
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::string& folder_;
  const Remark& remark_;
  bool said_ = false;
};

// Holds the shared lock; waits for a collector that is about to end.
Result<int> TakeLock(const std::string& folder, const Cancelled& cancelled, HolderTime& time) {
  const std::string path = folder + '/' + kUsersFile;
  Descriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (fd.get() < 0) return CannotUse(folder, std::strerror(errno));
  while (flock(fd.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return CannotUse(folder, std::strerror(errno));
    if (cancelled()) return Status(Code::kCancelled, "interrupted");
    if (!time.Wait(kSlice / 10))
      return Status(
          Code::kFailedPrecondition,
          fmt::format(
              "use the data folder '{}': the collector that serves it has been ending for 30 s; "
              "expected it to be gone; look at {}/{}",
              Printable(folder), Printable(folder), kLogFile));
  }
  return fd.Release();
}

// Where the folder's collector answers: as it says itself, or `own`, where statctl's listens; empty
// if none does.
std::string FindAddress(const std::string& folder, const std::string& own) {
  std::ifstream file(folder + '/' + kAddressFile);
  std::string said;
  std::getline(file, said);
  for (const std::string& address : {said, own}) {
    if (ValidateAddress(address).ok() && !NothingListens(address)) return address;
  }
  return {};
}

// A socket in the folder. Where its path would be too long, in a folder of this user's below /tmp;
// kPermissionDenied if another user has made that.
Result<std::string> SocketFor(const std::string& folder) {
  std::string path = folder + "/grpc.sock";
  if (path.size() <= kSocketPathBytesMax) return path;
  const std::string own = fmt::format("/tmp/statcollect-{}", getuid());
  struct stat found {};
  if (mkdir(own.c_str(), 0700) != 0 && errno != EEXIST) return CannotUse(own, std::strerror(errno));
  if (lstat(own.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != getuid())
    return CannotUse(own, "it is another user's");
  return fmt::format("{}/{:08x}.sock", own, Crc32c(folder));
}

// statcollectord beside this program, else by name on PATH.
std::string Program() {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = own.parent_path() / "statcollectord";
  return !error && access(beside.c_str(), X_OK) == 0 ? beside.string() : "statcollectord";
}

std::uintmax_t SizeOf(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

// What has been added to a file of that size.
std::string AddedTo(const std::string& path, std::uintmax_t before) {
  std::ifstream file(path);
  file.seekg(static_cast<std::streamoff>(before));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.size() > kSaidBytes) text.erase(0, text.size() - kSaidBytes);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// What the spawned collector gets instead of statctl's own standard streams.
class Streams {
 public:
  Streams(const std::string& log, int ready) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, ready, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    // Ctrl-C is for statctl and what it runs.
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  }
  ~Streams() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  // 0, or the error's number.
  int Spawn(std::vector<std::string> words, pid_t* pid) const {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    return posix_spawnp(pid, argv.front(), &actions_, &attributes_, argv.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

// Reads the ready line; kFailedPrecondition if the collector ends without one. A collector that is
// not wanted any more ends by itself.
Status AwaitReady(int output, const std::string& log, std::uintmax_t log_before,
                  const Cancelled& cancelled) {
  std::string said;
  while (said.find('\n') == std::string::npos) {
    pollfd ready{.fd = output, .events = POLLIN, .revents = 0};
    if (cancelled()) return {Code::kCancelled, "interrupted"};
    if (poll(&ready, 1, static_cast<int>(kSlice.count())) <= 0) continue;
    std::array<char, 4096> part;
    const ssize_t got = read(output, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return {Code::kFailedPrecondition,
              fmt::format("start a collector: it ended at once; its log ({}):\n{}", Printable(log),
                          AddedTo(log, log_before))};
    said.append(part.data(), static_cast<std::size_t>(got));
  }
  return Status::Ok();
}

// Starts one on the folder, and waits until it is ready. Its address.
Result<std::string> Start(const std::string& folder, const std::string& address,
                          const Cancelled& cancelled, pid_t& started) {
  std::array<int, 2> pipe = {-1, -1};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) return CannotUse(folder, std::strerror(errno));
  Descriptor output(pipe[0]), input(pipe[1]);
  const std::string log = folder + '/' + kLogFile;
  const std::string program = Program();
  if (SizeOf(log) > kLogBytesMax) (void)unlink(log.c_str());
  const std::uintmax_t log_before = SizeOf(log);
  pid_t pid = 0;
  const int error = Streams(log, input.get())
                        .Spawn({program, "--data-dir", folder, "--listen", address, "--http",
                                "127.0.0.1:0", "--until-unused"},
                               &pid);
  if (error != 0)
    return Status(
        error == ENOENT ? Code::kNotFound : Code::kFailedPrecondition,
        fmt::format(
            "start a collector: '{}': {}; expected statcollectord beside statctl, or on PATH",
            Printable(program), std::strerror(error)));
  input.Close();
  const Status ready = AwaitReady(output.get(), log, log_before, cancelled);
  if (!ready.ok()) {
    if (ready.code() != Code::kCancelled) waitpid(pid, nullptr, 0);
    return ready;
  }
  started = pid;
  return address;
}

}  // namespace

Result<std::unique_ptr<OwnCollector>> OwnCollector::Use(const std::string& given,
                                                        const Cancelled& cancelled,
                                                        const Remark& remark) {
  const auto folder = Folder(given);
  if (!folder.ok()) return folder.status();
  const auto socket = SocketFor(*folder);
  if (!socket.ok()) return socket.status();
  HolderTime time(*folder, remark);
  const auto users = TakeLock(*folder, cancelled, time);
  if (!users.ok()) return users.status();
  Descriptor lock(*users);
  const std::string own = std::string(kUnixScheme) + *socket;
  // Another program may open the folder at the same time, or be about to leave it.
  while (true) {
    if (std::string address = FindAddress(*folder, own); !address.empty()) {
      const bool passing = address == own;
      return std::unique_ptr<OwnCollector>(
          new OwnCollector(lock.Release(), std::move(address), 0, passing));
    }
    pid_t started = 0;
    auto address = Start(*folder, own, cancelled, started);
    if (address.ok())
      return std::unique_ptr<OwnCollector>(
          new OwnCollector(lock.Release(), *std::move(address), started, true));
    const bool held = address.status().message().find(" holds it") != std::string::npos;
    if (!held || !time.Wait(kSlice)) return address.status();
  }
}

OwnCollector::~OwnCollector() {
  if (users_ >= 0) close(users_);
}

void OwnCollector::End() {
  if (users_ < 0) return;
  const bool alone = flock(users_, LOCK_EX | LOCK_NB) == 0;
  close(std::exchange(users_, -1));
  if (started_ == 0 || !alone) return;
  const auto end = std::chrono::steady_clock::now() + kEndTime;
  while (waitpid(started_, nullptr, WNOHANG) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kSlice / 10);
}

Locate LocateOwn(const OwnCollectorOptions& options) {
  const auto own = std::make_shared<std::unique_ptr<OwnCollector>>();
  return [options, own](const Cancelled& cancelled) -> Result<Located> {
    if (!options.named && !NothingListens(kDefaultAddress))
      return Located{.address = kDefaultAddress};
    if (!options.start) {
      const std::string address = FindAddress(options.folder, {});
      return Located{.address = address.empty() ? kDefaultAddress : address};
    }
    std::error_code error;
    if (!options.make_folder && !std::filesystem::is_directory(options.folder, error)) {
      if (options.named)
        return CannotUse(options.folder, std::filesystem::exists(options.folder, error)
                                             ? "it is no folder"
                                             : "there is none");
      return Status(Code::kUnavailable,
                    fmt::format("no collector at {}, and no folder {} here; statctl run NAME -- "
                                "COMMAND records a training; "
                                "or name a collector with --collector HOST:PORT or "
                                "STATCTL_COLLECTOR, or a folder with --data-dir",
                                kDefaultAddress, Printable(options.folder)));
    }
    if (struct stat found{};
        !options.named && stat(options.folder.c_str(), &found) == 0 && found.st_uid != geteuid())
      return CannotUse(options.folder, "it is another user's, and was not named");
    auto used = OwnCollector::Use(options.folder, cancelled, options.remark);
    if (!used.ok()) return used.status();
    *own = *std::move(used);
    if (options.remark && (*own)->started() && !options.named)
      options.remark(
          fmt::format("statctl: no collector runs at {}; this command uses its own, on {}",
                      kDefaultAddress, Printable(options.folder)));
    return Located{.address = (*own)->address(), .passing = (*own)->passing()};
  };
}

}  // namespace statcollect::client
