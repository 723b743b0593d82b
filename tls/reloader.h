// Keeps a server's certificates as its files have them, without a restart.
#ifndef STATCOLLECT_TLS_RELOADER_H_
#define STATCOLLECT_TLS_RELOADER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "tls/files.h"

namespace statcollect::tls {

struct ReloaderOptions {
  std::chrono::milliseconds interval{1000};
  // From the reloader's thread: one line for a new certificate, and one for each way in which the
  // files are bad.
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

// Reads the files every second. It ignores files that it cannot use, such as the new
// certificate with the old key while both are being replaced, and keeps the last good ones.
// Thread-safe; has a thread.
class Reloader {
 public:
  // Load's errors.
  static Result<std::unique_ptr<Reloader>> Start(Files files, Names names, ReloaderOptions options);
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  // Never null; another object once the files have changed. Does not block on the disk.
  std::shared_ptr<const Material> current() const;

 private:
  Reloader(Files files, Names names, ReloaderOptions options, Material first);
  void Run();
  void Look();

  const Files files_;
  const Names names_;
  const ReloaderOptions options_;
  std::string complaint_;  // of the thread: what was last wrong with the files
  mutable Mutex mutex_;
  ConditionVariable wake_;
  std::shared_ptr<const Material> current_ STATCOLLECT_GUARDED_BY(mutex_);
  bool stop_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_RELOADER_H_
