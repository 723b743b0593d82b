// Bounds the memory of batches between the wire and the disk, over all streams. A batch enters
// before it is decoded, because that is when it grows: a message of 4 MiB may become a hundred
// times its size in memory.
//
// Without room a batch waits as it came from the wire, first come first served, and its stream
// reads nothing more, which holds its agent back. Nothing is lost by that.
//
// Threads: any.
#ifndef STATCOLLECT_SERVER_INGEST_MEMORY_GATE_H_
#define STATCOLLECT_SERVER_INGEST_MEMORY_GATE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/thread_annotations.h"

namespace statcollect {

class MemoryGate {
 public:
  // Memory in use, until destroyed. The gate must outlive it.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() { Resize(0); }
    // What it really is; may exceed what is free, and then the next ones wait longer.
    void Resize(std::size_t bytes);
    std::size_t bytes() const { return bytes_; }

   private:
    friend class MemoryGate;
    Share(MemoryGate* gate, std::size_t bytes) : gate_(gate), bytes_(bytes) {}
    MemoryGate* gate_ = nullptr;
    std::size_t bytes_ = 0;
  };
  using Job = std::function<void(Share share)>;

  // `threads`: those that run what had to wait.
  explicit MemoryGate(std::size_t bytes_max, std::size_t threads = 2);
  ~MemoryGate();  // calls Stop
  MemoryGate(const MemoryGate&) = delete;
  MemoryGate& operator=(const MemoryGate&) = delete;

  // Runs the job with its share: here if there is room and nobody waits, otherwise later on a
  // thread of the gate. A job larger than all there is runs alone. Dropped without running after
  // Stop.
  void Enter(std::size_t bytes, Job job);
  // Drops the jobs that wait, and waits for running ones on its own threads. Idempotent.
  void Stop();

  std::size_t bytes();    // in use
  std::size_t waiting();  // jobs

 private:
  struct Waiting {
    std::size_t bytes = 0;
    Job job;
  };
  bool HasRoomLocked(std::size_t bytes) const STATCOLLECT_REQUIRES(mutex_);
  void Change(std::size_t from, std::size_t to);
  void Run();

  const std::size_t bytes_max_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::size_t bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ STATCOLLECT_GUARDED_BY(mutex_);
  bool stopping_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::vector<std::thread> threads_;
};

// A gate for each part of the store, with an equal share of the memory: batches for a part that
// does not answer leave the others' share alone.
class MemoryGates {
 public:
  // `threads`: of each gate.
  explicit MemoryGates(std::size_t bytes_max, std::size_t parts = 1, std::size_t threads = 2) {
    for (std::size_t i = 0; i < parts; ++i)
      gates_.push_back(std::make_unique<MemoryGate>(bytes_max / parts, threads));
  }
  MemoryGate& of(std::size_t part) { return *gates_[part]; }
  void Stop() {
    for (const auto& gate : gates_) gate->Stop();
  }

 private:
  std::vector<std::unique_ptr<MemoryGate>> gates_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_MEMORY_GATE_H_
