#include "tls/reloader.h"

#include <utility>

namespace statcollect::tls {

Reloader::Reloader(Files files, Names names, ReloaderOptions options, Material first)
    : files_(std::move(files)),
      names_(std::move(names)),
      options_(std::move(options)),
      current_(std::make_shared<const Material>(std::move(first))) {
  thread_ = std::thread([this] { Run(); });
}

Result<std::unique_ptr<Reloader>> Reloader::Start(Files files, Names names,
                                                  ReloaderOptions options) {
  auto first = Load(files, names);
  if (!first.ok()) return first.status();
  return std::unique_ptr<Reloader>(
      new Reloader(std::move(files), std::move(names), std::move(options), *std::move(first)));
}

Reloader::~Reloader() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<const Material> Reloader::current() const {
  MutexLock lock(mutex_);
  return current_;
}

void Reloader::Run() {
  MutexLock lock(mutex_);
  while (!stop_) {
    const auto next = std::chrono::steady_clock::now() + options_.interval;
    while (!stop_ && wake_.wait_until(mutex_, next) != std::cv_status::timeout) {
    }
    if (stop_) return;
    lock.unlock();
    Look();
    lock.lock();
  }
}

void Reloader::Look() {
  auto read = Load(files_, names_);
  if (!read.ok()) {
    if (complaint_ == read.status().message()) return;
    complaint_ = read.status().message();
    return options_.log(complaint_ + "; the certificate that was read before stays in use");
  }
  complaint_.clear();
  if (*read == *current()) return;
  {
    MutexLock lock(mutex_);
    current_ = std::make_shared<const Material>(*std::move(read));
  }
  options_.log("TLS: new connections use the new contents of the certificate files");
}

}  // namespace statcollect::tls
